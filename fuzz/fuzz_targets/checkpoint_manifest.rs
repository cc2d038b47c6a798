//! A checkpoint's manifest: see `headlong_mutation::entries`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    headlong_mutation::entries::checkpoint_manifest(data);
});
