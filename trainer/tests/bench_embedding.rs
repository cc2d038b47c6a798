//! `headlong bench embedding`: tables alone, measured; what cannot be measured is refused.

#![cfg(test)]

use crate::run_support::Run;
use serde_json::Value;

/// A bench of a few milliseconds, of tables of some rows.
fn bench_of(rows: &str) -> Run {
    Run::new("bench").with(&[
        "embedding",
        "--tables",
        "2",
        "--rows",
        rows,
        "--dim",
        "64",
        "--seconds",
        "0",
    ])
}

fn bench() -> Run {
    bench_of("1000")
}

#[test]
fn tables_are_measured_with_every_optimizer() {
    for optimizer in ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam", "ftrl"] {
        let run = bench().with(&[
            "--ids",
            "128",
            "--bag",
            "4",
            "--threads",
            "2",
            "--optimizer",
            optimizer,
            "--json",
        ]);
        let found: Value = serde_json::from_str(&run.succeeds().stdout).unwrap();
        for (key, value) in
            [("tables", 2), ("rows", 1000), ("dim", 64), ("ids", 128), ("bag", 4), ("threads", 2)]
        {
            assert_eq!(found[key], value, "{found}");
        }
        assert_eq!((&found["device"], &found["alpha"]), (&"cpu".into(), &1.05.into()), "{found}");
        for key in [
            "ids_per_s",
            "best",
            "route_us",
            "lookup_us",
            "update_us",
            "step_us",
            "lookup_gb_per_s",
            "copy_gb_per_s",
            "step_roofline_us",
        ] {
            assert!(found[key].as_f64() > Some(0.0), "{key}: {found}");
        }
        // Of 128 ids a table, some are one row.
        assert!((2.0..256.0).contains(&found["distinct_rows"].as_f64().unwrap()), "{found}");
    }
    let text = bench().with(&["--ids", "64", "--alpha", "0"]).succeeds().stdout;
    for word in
        ["2 tables of 1,000 rows of 64 f32", "lookup", "GB/s of rows", "roofline", "adagrad"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    bench().with(&["--ids", "10", "--bag", "4"]).fails(2, &["--ids a multiple of --bag"]);
    bench().with(&["--optimizer", "adagard"]).fails(2, &["did you mean \"adagrad\"?"]);
    bench_of("10000000000000").fails(2, &["lower --rows, --dim, --tables or --ids"]);
    bench_of("18446744073709551615")
        .fails(2, &["--rows: expected at most", "found 18446744073709551615"]);
    for alpha in ["nan", "inf"] {
        bench().with(&["--alpha", alpha]).fails(2, &["--alpha is finite, and 0 or more"]);
    }
    for benches in [&["--json-file", "/proc/none/b.json"], &["--json-file", "/proc"]] {
        bench().with(benches).fails(1, &["write", "/proc"]);
    }
    // Before a device is asked for.
    for ids in ["4294967295", "536870913"] {
        let found = bench().with(&["--device", "cuda", "--ids", ids]);
        found.fails(2, &["--ids, --tables: expected at most 1073741824"]);
    }
}
