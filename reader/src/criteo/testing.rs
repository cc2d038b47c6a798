//! Rows of Criteo's format for tests.

use std::fmt::Write;

use crate::hashing::fmix64;

/// `count` rows drawn from `seed`: a few distinct categories, missing values, negative and large
/// integers.
pub fn rows(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut draw = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        fmix64(state)
    };
    let mut text = String::new();
    for _ in 0..count {
        write!(text, "{}", draw() % 4 / 3).unwrap();
        for _ in 0..13 {
            match draw() % 8 {
                0 => write!(text, "\t"),
                1 => write!(text, "\t-{}", draw() % 4),
                2 => write!(text, "\t{}", draw() as i32 >> (draw() % 31)),
                _ => write!(text, "\t{}", draw() % 5000),
            }
            .unwrap();
        }
        for column in 0..26_u64 {
            let kinds = [3, 40, 4000][column as usize % 3];
            match draw() % 10 {
                0 => write!(text, "\t"),
                1 => write!(text, "\t{:x}", draw() % kinds),
                _ => write!(text, "\t{:08x}", fmix64((column << 32) | (draw() % kinds)) as u32),
            }
            .unwrap();
        }
        text.push('\n');
    }
    text.into_bytes()
}
