//! Frames of a job that comes together: see `headlong_mutation::entries`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    headlong_mutation::entries::rendezvous_frame(data);
});
