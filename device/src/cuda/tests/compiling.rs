//! The compiler: wherever its library is found, no device needed.

use super::{OPTIMIZER_TEST, PRELUDE_TEST};
use crate::cuda::testing::layout_probe;
use crate::cuda::{Define, Library, Source, compile, compiler_version};
use crate::error::DeviceError;

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

fn compiler() -> bool {
    match compiler_version() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped, because {error}");
            false
        }
    }
}

fn is_software() -> bool {
    compiler_version().is_ok_and(|(_, minor)| minor >= 1000)
}

#[test]
fn prelude_compiles_for_every_architecture_without_warnings_or_spills() {
    if !compiler() {
        return;
    }
    let mut builds: Vec<(&Source, Vec<Define>)> = vec![(&PRELUDE_TEST, vec![])];
    builds.extend((0..5).map(|kind| (&OPTIMIZER_TEST, vec![Define::new("HL_OPTIMIZER", kind)])));
    let architectures = if is_software() { &ARCHITECTURES[1..2] } else { &ARCHITECTURES[..] };
    for (source, defines) in builds {
        for arch in architectures {
            let compiled =
                compile(source, &defines, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.warnings(), Vec::<&str>::new(), "{} for {arch}", source.name);
            assert!(!compiled.cubin.is_empty());
            for kernel in &compiled.kernels {
                assert_eq!(kernel.spill_bytes, 0, "{} for {arch}", kernel.name);
                assert!(kernel.registers > 0);
            }
            if !is_software() {
                let expected = if source.name.contains("prelude") { 8 } else { 1 };
                assert_eq!(compiled.kernels.len(), expected, "{}", compiled.log);
            }
        }
    }
}

#[test]
fn probes_of_layouts_compile() {
    if !compiler() {
        return;
    }
    let text = layout_probe(&PRELUDE_TEST, "ConvertArgs", &["from", "n"]);
    let probe = Source { name: "device/layout", text: Box::leak(text.into_boxed_str()) };
    assert_eq!(compile(&probe, &[], "sm_90a").unwrap().warnings(), Vec::<&str>::new());
}

#[test]
fn what_does_not_compile_is_named_with_its_line() {
    if !compiler() {
        return;
    }
    static BROKEN: Source = Source {
        name: "device/broken",
        text: "struct Args { u32 n; };\n\
               extern \"C\" __global__ void broken(const Args a) {\n  missing(a.n);\n\
               }\n",
    };
    match compile(&BROKEN, &[], "sm_90a") {
        Err(DeviceError::Compile { kernel, arch, log }) => {
            assert_eq!((kernel.as_str(), arch.as_str()), ("device/broken", "sm_90a"));
            assert!(log.contains("missing") && log.contains("device/broken.cu"), "{log}");
            assert!(
                log.contains("(3)") || log.contains(":3:"),
                "the third line of the file:\n{log}"
            );
        }
        other => panic!("expected a compile error, got {other:?}"),
    }
}

#[test]
fn libraries_say_where_they_are_or_why_not() {
    for library in Library::ALL {
        let found = library.find();
        match found.path {
            Ok(path) => assert!(path.is_absolute(), "{}", path.display()),
            Err(reason) => assert!(reason.contains(found.name), "{reason}"),
        }
    }
}
