//! Rules of kernels (`.cu`, `.cuh`): one text for every compiler, and sums that are the same each
//! time.
//!
//! | rule | says |
//! |---|---|
//! | kernel source | `__CUDA_ARCH__` stands only in the prelude; nothing is included, because the text is put together by Rust |
//! | float atomic | no float is added atomically; what is added shows that it is an integer: `1u`, `(u32)count` |
//! | dead kernel | some Rust file takes the text by `include_str!` |

use super::Violation;
use super::text::{TextFile, join};

/// The one file that may ask which compiler reads it.
const PRELUDE: &str = "device/cuda/prelude.cuh";

/// What an integer looks like at the place where it is added.
const INTEGER_CASTS: &[&str] =
    &["(u32)", "(u64)", "(i32)", "(i64)", "(unsigned", "(int)", "u32(", "u64(", "static_cast<u32>"];

/// Checks all kernels among `files`.
pub fn check(files: &[TextFile]) -> Vec<Violation> {
    let included: Vec<String> =
        files.iter().filter(|file| file.is_rust()).flat_map(includes).collect();
    let kernels = files.iter().filter(|file| file.is_kernel());
    kernels
        .flat_map(|file| {
            let mut violations = check_text(file);
            if !included.contains(&file.path) {
                violations.push(Violation::new(
                    &file.path,
                    1,
                    "dead kernel",
                    "no Rust file includes it: nothing compiles it",
                ));
            }
            violations
        })
        .collect()
}

fn check_text(file: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let text = without_comments(&file.text);
    for (index, line) in text.lines().enumerate() {
        let mut report = |rule, message: &str| {
            violations.push(Violation::new(&file.path, index + 1, rule, message))
        };
        if line.contains("__CUDA_ARCH__") && file.path != PRELUDE {
            let message =
                format!("`__CUDA_ARCH__` belongs into {PRELUDE}: wrap the one instruction there");
            report("kernel source", &message);
        }
        if line.trim_start().starts_with("#include") {
            report(
                "kernel source",
                "nothing is included: put the texts together with `concat!` in Rust",
            );
        }
        if adds_float_by_instruction(line) {
            report(
                "float atomic",
                "its result depends on the order of threads: reduce by segments instead",
            );
        }
    }
    for (at, _) in text.match_indices("atomicAdd") {
        let line = text[..at].lines().count().max(1);
        if !shows_an_integer(&text[at..]) {
            let advice = "what is added does not show that it is an integer: write `1u` or \
                          `(u32)x`; floats are reduced by segments instead";
            violations.push(Violation::new(&file.path, line, "float atomic", advice));
        }
    }
    violations
}

/// Whether the second argument of the call at the beginning of `call` is an integer for everybody
/// to see.
fn shows_an_integer(call: &str) -> bool {
    let Some((name, rest)) = call.split_once('(') else { return false };
    if !name
        .trim_start_matches("atomicAdd")
        .trim_start_matches(|letter: char| letter == '_' || letter.is_alphabetic())
        .trim()
        .is_empty()
    {
        return false;
    }
    let (mut depth, mut last, mut start) = (0_usize, "", 0);
    for (at, letter) in rest.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                last = &rest[start..at];
                break;
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    let last = last.trim();
    let digits = last.trim_end_matches(['u', 'l', 'U', 'L']);
    let is_literal = !digits.is_empty()
        && digits.len() < last.len()
        && digits.chars().all(|c| c.is_ascii_digit());
    is_literal || INTEGER_CASTS.iter().any(|cast| last.starts_with(cast))
}

/// Whether a line holds a PTX instruction that adds floats in memory: `red.global.add.f32`,
/// `atom.add.noftz.bf16x2`.
fn adds_float_by_instruction(line: &str) -> bool {
    let words = line.split(|letter: char| {
        !(letter.is_alphanumeric() || letter == '.' || letter == '_' || letter == ':')
    });
    words.into_iter().any(|word| {
        let parts: Vec<&str> = word.split('.').collect();
        let adds = matches!(parts.first(), Some(&("red" | "atom"))) && parts.contains(&"add");
        adds && parts.iter().any(|part| part.starts_with('f') || part.starts_with("bf"))
    })
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        let comment = &rest[at..];
        let (end, keeps) = match comment.starts_with("//") {
            true => (comment.find('\n').unwrap_or(comment.len()), 0),
            false => (comment.find("*/").map_or(comment.len(), |end| end + 2), 1),
        };
        if keeps == 1 {
            out.extend(comment[..end].chars().filter(|letter| *letter == '\n'));
        }
        rest = &comment[end..];
    }
    out.push_str(rest);
    out
}

/// The files whose text `file` takes by `include_str!`, as paths of the workspace.
fn includes(file: &TextFile) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let calls = file.text.split("include_str!(").skip(1);
    calls.filter_map(|call| Some(join(folder, call.split('"').nth(1)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check_text(&file(path, text)).into_iter().map(|found| (found.line, found.rule)).collect()
    }

    #[test]
    fn only_the_prelude_asks_for_the_compiler() {
        let text = "\n#ifdef __CUDA_ARCH__\n#endif\n";
        assert_eq!(rules("mlp/src/loss/loss.cu", text), [(2, "kernel source")]);
        assert_eq!(rules(PRELUDE, text), []);
        assert_eq!(
            rules(
                "mlp/src/loss/loss.cu",
                "// __CUDA_ARCH__ is not here\n/* nor\n __CUDA_ARCH__ */"
            ),
            []
        );
    }

    #[test]
    fn nothing_is_included() {
        assert_eq!(rules("a.cu", "#include <cuda_fp16.h>\n"), [(1, "kernel source")]);
        assert_eq!(rules("a.cuh", "int x;\n  #include \"b.cuh\"\n"), [(2, "kernel source")]);
    }

    #[test]
    fn what_is_added_atomically_is_an_integer() {
        let good =
            ["atomicAdd(&n[f(a, b)], 1u);", "atomicAdd(count, (u32)x);", "atomicAdd(&n, 1ull);"];
        for line in good {
            assert_eq!(rules("a.cu", line), [], "{line}");
        }
        let bad = [
            "atomicAdd(&sum, x);",
            "atomicAdd(sum, 1.0f);",
            "atomicAdd(\n  &sum[i],\n  value);",
            "f = atomicAdd;",
        ];
        for line in bad {
            assert_eq!(rules("a.cu", line), [(1, "float atomic")], "{line}");
        }
        let asm = "\n\
                   asm(\"red.global.add.f32 [%0], %1;\");\n\
                   asm(\"atom.add.noftz.bf16x2 %0, [%1], %2;\");\n";
        assert_eq!(rules("a.cu", asm), [(2, "float atomic"), (3, "float atomic")]);
        assert_eq!(
            rules(
                "a.cu",
                "asm(\"red.global.add.u32 [%0], %1;\"); // add.f32 by red. would be bad\n"
            ),
            []
        );
    }

    #[test]
    fn a_kernel_that_no_rust_file_takes_is_found() {
        let files = [
            file(
                "mlp/src/loss/cuda.rs",
                "static A: &str = concat!(include_str!(\"loss.cu\"), include_str!(\n \
                 \"../x/y.cuh\"));",
            ),
            file("mlp/src/loss/loss.cu", ""),
            file("mlp/src/x/y.cuh", ""),
            file("mlp/src/loss/old.cu", ""),
        ];
        let found: Vec<(String, &str)> =
            check(&files).into_iter().map(|found| (found.file, found.rule)).collect();
        assert_eq!(found, [("mlp/src/loss/old.cu".to_string(), "dead kernel")]);
    }
}
