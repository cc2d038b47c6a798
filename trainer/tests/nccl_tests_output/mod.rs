//! A reader of what nccl-tests print, written from their documented format: lines that begin with
//! `#` are comments, all others are `size count type redop root`, then twice (out of place, in
//! place) `time algbw busbw #wrong`.

/// Everything that is read.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    pub rows: Vec<Row>,
    pub nranks: usize,
    pub out_of_bounds: u64,
    pub mean_bus_bandwidth: f64,
}

/// One size.
#[derive(Debug, Clone)]
pub struct Row {
    pub size: u64,
    pub count: u64,
    pub dtype: String,
    pub redop: String,
    pub root: i64,
    pub out_of_place: Half,
    pub in_place: Half,
}

/// One place.
#[derive(Debug, Clone)]
pub struct Half {
    pub time_us: f64,
    pub algbw: f64,
    pub busbw: f64,
    /// None: N/A.
    pub wrong: Option<u64>,
}

/// Reads the whole output; what it is not is said with the line.
pub fn parse(text: &str) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut columns = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value =
            |label: &str| line.strip_prefix(label).map(|rest| rest.trim_start_matches([' ', ':']));
        if let Some(rest) = value("# Out of bounds values") {
            let (number, verdict) = rest.split_once(' ').ok_or(line)?;
            parsed.out_of_bounds = number.parse().map_err(|_| line)?;
            let right = verdict.trim() == if parsed.out_of_bounds == 0 { "OK" } else { "FAILED" };
            right.then_some(()).ok_or(line)?;
        } else if let Some(rest) = value("# Avg bus bandwidth") {
            parsed.mean_bus_bandwidth = rest.trim().parse().map_err(|_| line)?;
        } else if words.first() == Some(&"#") && words.get(1) == Some(&"Rank") {
            parsed.nranks += 1;
        } else if words.first() == Some(&"#") && words.get(1) == Some(&"size") {
            columns = Some(words[1..].join(" "));
        } else if !line.starts_with('#') {
            parsed.rows.push(row(&words).ok_or_else(|| format!("no row: {line}"))?);
        }
    }
    let expected = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong";
    match columns {
        Some(names) if names == expected => Ok(parsed),
        names => Err(format!("columns {names:?}")),
    }
}

fn row(words: &[&str]) -> Option<Row> {
    let [size, count, dtype, redop, root, halves @ ..] = words else { return None };
    let [out @ .., t, a, b, w] = halves else { return None };
    let [time, algbw, busbw, wrong] = out else { return None };
    Some(Row {
        size: size.parse().ok()?,
        count: count.parse().ok()?,
        dtype: (*dtype).to_owned(),
        redop: (*redop).to_owned(),
        root: root.parse().ok()?,
        out_of_place: half([time, algbw, busbw, wrong])?,
        in_place: half([t, a, b, w])?,
    })
}

fn half([time, algbw, busbw, wrong]: [&str; 4]) -> Option<Half> {
    let wrong = if wrong == "N/A" { None } else { Some(wrong.parse().ok()?) };
    Some(Half {
        time_us: time.parse().ok()?,
        algbw: algbw.parse().ok()?,
        busbw: busbw.parse().ok()?,
        wrong,
    })
}

#[test]
fn what_nccl_tests_print_is_read() {
    // The shape of an all_reduce_perf run of 2.13 and later.
    let text = include_str!("all_reduce_perf.txt");
    let parsed = parse(text).expect("the format");
    assert_eq!((parsed.rows.len(), parsed.nranks, parsed.mean_bus_bandwidth), (2, 1, 220.921));
    assert_eq!((parsed.rows[1].out_of_place.busbw, parsed.rows[1].in_place.wrong), (17.33, None));
    assert!(parse(&text.replace("busbw", "bus")).is_err());
    assert!(parse(&text.replace("   0.04 ", "")).is_err());
}
