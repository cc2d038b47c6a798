//! The line parser: see `headlong_mutation::entries`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    headlong_mutation::entries::criteo_line(data);
});
