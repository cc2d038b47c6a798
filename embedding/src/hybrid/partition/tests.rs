use super::*;

fn spec(name: &str, rows: u64) -> TableSpec {
    TableSpec::new(name, rows, 4)
}

/// Every row has one place, places do not meet, and each owner's local rows lead back to their
/// rows.
fn check_all(specs: &[TableSpec], partition: &Partition) {
    for (table, spec) in specs.iter().enumerate() {
        let mut seen = std::collections::HashSet::new();
        for row in 0..spec.rows {
            let place = partition.classify(table, row);
            assert!(seen.insert(place), "two rows of table {table} lie at {place:?}");
            match place {
                Place::Frequent(slot) => {
                    assert!(slot < partition.num_frequent(table));
                    assert_eq!(partition.row_of_frequent(table, slot), row);
                }
                Place::Infrequent { owner, local_row } => {
                    assert!(
                        local_row < partition.local_rows(table, owner),
                        "row {row} at {place:?}"
                    );
                    assert_eq!(partition.row_of_local(table, owner, local_row), row);
                }
            }
        }
        for owner in (0..partition.num_owners()).map(Owner) {
            for local_row in 0..partition.local_rows(table, owner) {
                assert!(partition.row_of_local(table, owner, local_row) < spec.rows);
            }
        }
        let rows: Vec<u64> = (0..spec.rows).collect();
        let mut codes = vec![Code::default(); rows.len()];
        partition.classify_rows(table, &rows, &mut codes);
        // Rows that rise fill each bucket in rising order of local rows.
        let mut last = std::collections::BTreeMap::new();
        for code in codes.into_iter().filter(|code| !code.is_frequent()) {
            assert!(
                last.insert(code.bucket(), code.local_row())
                    .is_none_or(|last| last < code.local_row())
            );
        }
    }
}

#[test]
fn every_row_has_one_place() {
    let specs = [spec("a", 1), spec("b", 1000), spec("c", 37), spec("d", 5000), spec("e", 100)];
    for owners in [1, 2, 3, 5, 8, 13] {
        let last = Owner(owners - 1);
        let placements = vec![
            TablePlacement::by_formula(),
            TablePlacement::RowWise {
                frequent: vec![999, 3, 500],
                placed: vec![(7, last), (2, Owner(0)), (998, last), (4, last)],
            },
            TablePlacement::DataParallel,
            TablePlacement::RowWise {
                frequent: (0..1500).map(|i| i * 3).collect(),
                placed: vec![(4, last)],
            },
            TablePlacement::TableWise(last),
        ];
        check_all(&specs, &Partition::new(&specs, owners, placements).unwrap());
        check_all(&specs, &Partition::row_wise(&specs, owners));
        check_all(&specs, &Partition::all_frequent(&specs, owners));
    }
}

#[test]
fn rows_by_formula_are_spread_evenly() {
    let specs = [spec("a", 10), spec("b", 11)];
    let partition = Partition::row_wise(&specs, 4);
    let rows =
        |table| (0..4).map(|owner| partition.local_rows(table, Owner(owner))).collect::<Vec<_>>();
    assert_eq!(rows(0), [3, 3, 2, 2]);
    // The second table starts with the second owner.
    assert_eq!(rows(1), [2, 3, 3, 3]);
}

#[test]
fn raw_ids_are_spread_by_a_hash() {
    let specs = [TableSpec { keys: Keys::RawIds, ..spec("a", 1000) }];
    let partition = Partition::all_frequent(&specs, 4);
    assert_eq!((partition.num_frequent(0), partition.local_rows(0, Owner(3))), (0, 250));
    let mut counts = [0; 4];
    for id in 0..4000 {
        // Ids of one residue, as a hash of another system may leave them.
        let id = id * 4096 + 17;
        match partition.classify(0, id) {
            Place::Infrequent { owner, local_row } => {
                assert_eq!(local_row, id);
                counts[owner.0] += 1;
            }
            place => panic!("{place:?}"),
        }
    }
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
}

#[test]
fn placements_that_do_not_fit_are_named() {
    let message = |spec: TableSpec, placement| {
        Partition::new(&[spec], 2, vec![placement]).unwrap_err().to_string()
    };
    let row_wise = |frequent: &[u64], placed: &[(u64, Owner)]| TablePlacement::RowWise {
        frequent: frequent.to_vec(),
        placed: placed.to_vec(),
    };
    let ads = spec("ads", 10);
    assert_eq!(
        message(ads.clone(), row_wise(&[3, 10], &[])),
        "table `ads`: placement: row 10 is named, the table has 10 rows"
    );
    assert_eq!(
        message(ads.clone(), row_wise(&[3], &[(3, Owner(0))])),
        "table `ads`: placement: row 3 is named twice"
    );
    assert!(message(ads.clone(), row_wise(&[], &[(3, Owner(2))])).contains("there are 2 owners"));
    assert!(
        message(ads.clone(), TablePlacement::TableWise(Owner(2))).contains("there are 2 owners")
    );
    let whole = TableSpec { grain: Grain::Whole, ..ads.clone() };
    assert!(message(whole, row_wise(&[], &[])).contains("never by row"));
    let raw = TableSpec { keys: Keys::RawIds, ..ads.clone() };
    assert!(message(raw.clone(), row_wise(&[1], &[])).contains("no row of it can be named"));
    assert!(message(raw, TablePlacement::DataParallel).contains("no replica"));
    let error = Partition::new(&[ads], 2, vec![]).unwrap_err().to_string();
    assert!(error.contains("0 placements for 1 tables"), "{error}");
}
