//! `headlong bench machine`: what the machine can do, measured; what does not fit is refused.

#![cfg(test)]

use crate::run_support::Run;
use serde_json::Value;

/// A run of some milliseconds, on few rows.
fn bench() -> Run {
    Run::new("bench").with(&["machine", "--rows", "1000", "--batch-size", "64", "--seconds", "0"])
}

#[test]
fn a_machine_says_what_it_can_and_what_bounds_each_shape() {
    let run = bench().with(&["--threads", "2", "--json"]);
    let found: Value = serde_json::from_str(&run.succeeds().stdout).unwrap();
    assert_eq!((&found["rows"], &found["row_bytes"]), (&1000.into(), &512.into()), "{found}");
    // Of few rows, too, arrays are longer than any cache.
    assert_eq!(found["array_bytes"], 256 << 20, "{found}");
    assert!(found["cores"].as_u64() > Some(0) && found["isa"].is_string(), "{found}");
    let rates = found["rates"].as_array().unwrap();
    assert_eq!(rates.iter().map(|rates| &rates["threads"]).collect::<Vec<_>>(), [1, 2]);
    for rates in rates {
        for key in [
            "f32_gflops",
            "bf16_gflops",
            "read_gb_per_s",
            "copy_gb_per_s",
            "gather_gb_per_s",
            "update_gb_per_s",
        ] {
            assert!(rates[key].as_f64() > Some(0.0), "{key}: {found}");
        }
    }
    let shapes = found["shapes"].as_array().unwrap();
    assert_eq!(shapes.iter().map(|shape| &shape["shape"]).collect::<Vec<_>>(), ["C1", "C2", "C3"]);
    for shape in shapes {
        assert!(shape["flop_per_sample"].as_u64() > Some(0), "{found}");
        let bounds = shape["bounds"].as_array().unwrap();
        let of = |bound: &Value| format!("{}, {}", bound["dtype"], bound["threads"]);
        let of: Vec<String> = bounds.iter().map(of).collect();
        assert_eq!(of, ["\"f32\", 1", "\"f32\", 2", "\"bf16\", 1", "\"bf16\", 2"]);
        for bound in bounds {
            assert!(bound["samples_per_s"].as_f64() > Some(0.0), "{found}");
            assert!(bound["bound_by"] == "products" || bound["bound_by"] == "rows", "{found}");
        }
    }
}

#[test]
fn the_text_names_instructions_pages_and_bounds() {
    let text = bench().with(&["--threads", "1", "--instructions", "portable"]).succeeds().stdout;
    for word in [
        "instructions: ",
        "used: portable\n",
        "huge pages: ",
        "1 thread\n",
        "multiply-adds, bf16, GFLOP/s",
        "gather of rows of 512 bytes, GB/s",
        "on small pages",
        "14,447,360",
        "bf16, 1 thread",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    bench().with(&["--threads", "0"]).fails(2, &["--threads"]);
    Run::new("bench").with(&["machine", "--rows", "4294967295"]).fails(2, &["lower --rows"]);
}
