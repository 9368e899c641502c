//! `just fuzz configuration`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::configuration::run(data));
