//! What the documentation tells users to deploy: the manifests of `docs/kubernetes`, the
//! Containerfile and the archive of a release, held against the rules of those who read them.
//! Manifests and Containerfile are not run by the tests.

#![cfg(test)]

use crate::python_support::python;
use clap::Parser as _;
use headlong::commands::cli::{Cli, Command};
use headlong_comm::launcher_env::{self, Environment};
use headlong_comm::rendezvous::Keys;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command as Process;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn text(file: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{file}")).unwrap()
}

/// The documents of one of `docs/kubernetes`, in their order.
fn documents(file: &str) -> Vec<Value> {
    let text = text(&format!("docs/kubernetes/{file}"));
    let documents = serde_norway::Deserializer::from_str(&text);
    documents.map(|one| Value::deserialize(one).unwrap()).collect()
}

/// The service and the job of `job.yaml`.
fn service_and_job() -> (Value, Value) {
    let [service, job] = documents("job.yaml").try_into().expect("two documents");
    (service, job)
}

/// What each manifest says of its ranks' job, and the name of the first rank's pod.
fn jobs_of_ranks() -> Vec<(Value, String)> {
    let (service, job) = service_and_job();
    let name = |value: &Value| value["metadata"]["name"].as_str().expect("a name").to_owned();
    let of_set = |set: &Value, name: &str, subdomain: &str| {
        let [ranks] = list(set, "replicatedJobs")[..] else { panic!("one job: {set}") };
        let pod = format!("{name}-{}-0-0.{subdomain}", ranks["name"].as_str().expect("a name"));
        (ranks["template"]["spec"].clone(), pod)
    };
    let [set] = documents("jobset.yaml").try_into().expect("one document");
    let subdomain = set["spec"]["network"]["subdomain"].as_str().expect("a subdomain");
    let [runtime, train] = documents("trainjob.yaml").try_into().expect("two documents");
    assert_eq!(train["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"]);
    vec![
        (job["spec"].clone(), format!("{}-0.{}", name(&job), name(&service))),
        of_set(&set["spec"], &name(&set), subdomain),
        // A set has the name of its TrainJob, and a subdomain that is not given that of the set.
        of_set(&runtime["spec"]["template"]["spec"], &name(&train), &name(&train)),
    ]
}

/// By the schemas that their projects publish.
#[test]
fn the_manifests_keep_their_schemas() {
    let Some(python) = python(&["kubernetes_validate", "kubeflow_trainer_api"]) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/check_kubernetes.py");
    let files =
        ["job", "jobset", "trainjob"].map(|name| format!("{ROOT}/docs/kubernetes/{name}.yaml"));
    let check = |files: &[&str]| Process::new(&python).arg(&script).args(files).output().unwrap();
    let ended = check(&files.each_ref().map(String::as_str));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let kinds = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(
        kinds.split_whitespace().collect::<Vec<_>>(),
        ["Service", "Job", "Job", "JobSet", "Job", "TrainingRuntime", "TrainJob"]
    );
    // And it would tell.
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.yaml");
    for (right, other) in
        [("restartPolicy:", "restartPolicies:"), ("maxRestarts: 3", "maxRestarts: x")]
    {
        std::fs::write(&wrong, text("docs/kubernetes/jobset.yaml").replace(right, other)).unwrap();
        assert!(!check(&[wrong.to_str().unwrap()]).status.success(), "{other}");
    }
}

fn list<'v>(value: &'v Value, what: &str) -> Vec<&'v Value> {
    value[what].as_array().unwrap_or_else(|| panic!("{what} is a list")).iter().collect()
}

fn names(values: &[&Value]) -> BTreeSet<String> {
    values.iter().map(|value| value["name"].as_str().expect("a name").to_owned()).collect()
}

/// Rules of `batch/v1` on how a Job continues after a failure.
#[test]
fn the_job_keeps_the_rules_of_its_api() {
    let (service, job) = service_and_job();
    assert_eq!((&service["apiVersion"], &service["kind"]), (&"v1".into(), &"Service".into()));
    assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"Job".into()));
    let spec = &job["spec"];
    let pod = &spec["template"]["spec"];
    let restarts = pod["restartPolicy"].as_str();
    assert!(matches!(restarts, Some("Never" | "OnFailure")), "{restarts:?}");
    for key in ["backoffLimitPerIndex", "podFailurePolicy"] {
        assert!(
            spec[key].is_null() || restarts == Some("Never"),
            "{key} needs restartPolicy: Never"
        );
    }
    // Retries of one index alone are for pods that do not need each other.
    assert!(spec["backoffLimitPerIndex"].is_null());
    let ranks = spec["completions"].as_u64().unwrap();
    assert!(spec["backoffLimit"].as_u64().unwrap() >= ranks, "all ranks fail together");
    for rule in list(&spec["podFailurePolicy"], "rules") {
        assert!(matches!(rule["action"].as_str(), Some("FailJob" | "Ignore" | "Count")), "{rule}");
        let codes = &rule["onExitCodes"];
        assert!(
            codes.is_null() || codes["operator"] == "In" && !list(codes, "values").is_empty(),
            "{rule}"
        );
        assert!(!list(codes, "values").contains(&&0.into()), "0 is no failure");
    }
    // The names of pods, JOB-INDEX.SUBDOMAIN, are known by a headless service of that name.
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(
        service["spec"]["publishNotReadyAddresses"], true,
        "ranks meet before they are ready"
    );
    assert_eq!(service["metadata"]["name"], pod["subdomain"]);
    assert_eq!(service["spec"]["selector"]["job-name"], job["metadata"]["name"]);
}

#[test]
fn every_mount_has_its_volume_and_the_program_may_write_where_it_writes() {
    for (job, _) in jobs_of_ranks() {
        mounts_are_whole(&job["template"]["spec"]);
    }
}

fn mounts_are_whole(pod: &Value) {
    let container = &pod["containers"][0];
    let (volumes, mounts) = (list(pod, "volumes"), list(container, "volumeMounts"));
    assert_eq!(names(&volumes), names(&mounts));
    let security = &pod["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(security["fsGroup"], security["runAsUser"], "volumes are the program's to write");
    let is_writable = |path: &str| {
        let mut under =
            mounts.iter().filter(|mount| path.starts_with(mount["mountPath"].as_str().unwrap()));
        under.any(|mount| mount["readOnly"] != true)
    };
    let arguments: Vec<&str> =
        list(container, "args").iter().map(|word| word.as_str().unwrap()).collect();
    for flag in ["--output-dir=", "--checkpoint-dir="] {
        let path = arguments.iter().find_map(|word| word.strip_prefix(flag)).expect(flag);
        assert!(is_writable(path), "{flag}{path}");
    }
    let parsed = Cli::try_parse_from([&["headlong"], &arguments[..]].concat()).unwrap();
    assert!(matches!(parsed.command, Some(Command::Train(train)) if train.resume));
}

/// The variables make of every pod a rank that may start: the program's own code reads them.
#[test]
fn the_manifests_variables_give_every_pod_its_place() {
    for (job, first_pod) in jobs_of_ranks() {
        variables_give_places(&job, &first_pod);
    }
}

fn variables_give_places(job: &Value, first_pod: &str) {
    assert_eq!(job["completionMode"], "Indexed");
    assert_eq!(job["completions"], job["parallelism"], "all ranks at once");
    let ranks = job["completions"].as_u64().unwrap();
    let container = &job["template"]["spec"]["containers"][0];
    for rank in 0..ranks {
        let mut environment = Environment::new();
        for variable in list(container, "env") {
            let from = &variable["valueFrom"];
            let value =
                match (&variable["value"], &from["fieldRef"]["fieldPath"], &from["secretKeyRef"]) {
                    (Value::String(value), _, _) => value.clone(),
                    (_, Value::String(path), _) => {
                        assert_eq!(
                            path,
                            "metadata.annotations['batch.kubernetes.io/job-completion-index']"
                        );
                        rank.to_string()
                    }
                    (_, _, Value::Object(secret)) => {
                        assert!(text("docs/multi-node.md").contains(&format!(
                            "kubectl create secret generic {} --from-literal={}=",
                            secret["name"].as_str().unwrap(),
                            secret["key"].as_str().unwrap()
                        )));
                        "what that command makes of 32 bytes".into()
                    }
                    other => panic!("{other:?}"),
                };
            environment.insert(variable["name"].as_str().unwrap().into(), value.into());
        }
        let launch = launcher_env::parse(&environment).unwrap().launch().expect("a rank");
        assert_eq!((launch.rank.0 as u64, launch.world_size as u64), (rank, ranks));
        assert_eq!(launch.master_host, first_pod);
        Keys::of(&launch, false).expect("it is let in beyond one machine");
    }
}

/// The image is built from versions that have names, and the commands at its head may write.
#[test]
fn the_image_is_pinned_and_its_commands_can_write() {
    let text = text("Containerfile");
    let arguments: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ARG ")).collect();
    let bases = text.lines().filter_map(|line| line.strip_prefix("FROM "));
    for base in bases {
        let name = base.split_whitespace().next().unwrap().trim_matches(['$', '{', '}']);
        let image = arguments
            .iter()
            .find_map(|argument| argument.split_once('=').filter(|(key, _)| *key == name));
        let (_, image) =
            image.unwrap_or_else(|| panic!("{base} is an argument, so that a digest can pin it"));
        let tag = image.rsplit_once(':').expect("a tag").1;
        let has_version =
            tag.split(['-', '@']).next().is_some_and(|one| one.split('.').count() == 3);
        assert!(has_version || image.starts_with("gcr.io/distroless/cc-debian12:"), "{image}");
    }
    let minimum = self::text("Cargo.toml");
    let minimum =
        minimum.lines().find_map(|line| line.strip_prefix("rust-version = \"1.")).unwrap();
    let builder = text.split_once("rust:1.").unwrap().1.split('.').next().unwrap();
    assert!(builder.parse::<u32>().unwrap() >= minimum.trim_matches('"').parse().unwrap());
    for line in text.lines().filter(|line| line.contains(" run ")) {
        let is_callers = line.contains("--userns=keep-id") || line.contains("--user ");
        assert!(
            is_callers || !line.contains("-v "),
            "another user may not write to the caller's folder: {line}"
        );
    }
    assert!(text.contains("USER 65532"), "not root");
}

/// What the image copies is there, and is not left out of what the builder sees.
#[test]
fn the_image_copies_what_is_there() {
    let text = text("Containerfile");
    let left_out = self::text(".dockerignore");
    let mut copied = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let (from_builder, words): (Vec<&str>, Vec<&str>) =
            line.split_whitespace().partition(|word| word.starts_with("--from="));
        let [source, _] = words[..] else { panic!("one source, one target: {line}") };
        copied += 1;
        match (from_builder.is_empty(), source.strip_prefix("/source/")) {
            (true, _) => assert!(Path::new(ROOT).join(source).exists(), "{line}"),
            (false, Some(file)) => {
                assert!(Path::new(ROOT).join(file).exists(), "{line}");
                assert!(!left_out.lines().any(|out| out.trim_start_matches('/') == file), "{line}");
            }
            (false, None) => {
                assert!(text.contains(&format!("cp target/release/headlong {source} ")), "{line}");
            }
        }
    }
    assert_eq!(copied, 3);
    // The same compiler as the job that runs every check.
    let builder = text.split_once("rust:").unwrap().1.split('-').next().unwrap();
    let checked = self::text(".github/workflows/ci.yml");
    assert!(checked.contains(&format!("library/rust:{builder}-")), "{builder}");
}

/// The jobs of a workflow, by their names.
fn jobs(file: &str) -> serde_json::Map<String, Value> {
    let workflow: Value = serde_norway::from_str(&text(file)).unwrap();
    assert_eq!(workflow["permissions"]["contents"], "read", "{file}: what a job may do is said");
    workflow["jobs"].as_object().expect("jobs").clone()
}

/// Rules of GitHub's workflows, as far as can be told without it: jobs that are needed are there,
/// scripts are shell, actions have versions, and every job ends in time.
#[test]
fn the_workflows_can_be_read() {
    for file in [".github/workflows/ci.yml", ".github/workflows/release.yml"] {
        let jobs = jobs(file);
        for (name, job) in &jobs {
            assert!(job["timeout-minutes"].as_u64().is_some(), "{file}: {name} ends in time");
            let needs = match &job["needs"] {
                Value::String(one) => vec![one.as_str()],
                Value::Null => Vec::new(),
                _ => list(job, "needs").iter().map(|need| need.as_str().unwrap()).collect(),
            };
            assert!(needs.iter().all(|need| jobs.contains_key(*need)), "{file}: {name}");
            for step in list(job, "steps") {
                match (&step["uses"], &step["run"]) {
                    (Value::String(action), Value::Null) => {
                        let version = action.split_once("@v").expect("a version").1;
                        assert!(version.parse::<u32>().is_ok(), "{file}: {action}");
                    }
                    (Value::Null, Value::String(script)) => is_shell(file, script),
                    other => panic!("{file}: {name}: an action or a script: {other:?}"),
                }
            }
        }
    }
}

fn is_shell(file: &str, script: &str) {
    // What GitHub puts in before the shell reads it.
    let mut script = script.to_owned();
    while let Some((before, rest)) = script.split_once("${{") {
        let (_, after) = rest.split_once("}}").expect("an expression ends");
        script = format!("{before}x{after}");
    }
    let output = Process::new("bash").args(["-n", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    let steps = script.split("--only ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let known = text("xtask/src/ci/steps.rs");
    for step in steps {
        assert!(known.contains(&format!("name: \"{step}\"")), "{file}: no step {step}");
    }
}

/// Every file of a release is made before it is published, and a tag is held against the version.
#[test]
fn a_release_publishes_what_its_jobs_have_made() {
    let jobs = jobs(".github/workflows/release.yml");
    let publish = &jobs["publish"];
    assert_eq!(publish["if"], "github.ref_type == 'tag'");
    assert_eq!(publish["permissions"]["contents"], "write");
    let needed = list(publish, "needs");
    for (name, job) in jobs.iter().filter(|(name, _)| *name != "publish" && *name != "version") {
        assert!(needed.contains(&&Value::from(name.as_str())) && job["needs"] == "version");
        let steps = list(job, "steps");
        let kept = steps.iter().filter_map(|step| step["with"]["if-no-files-found"].as_str());
        assert_eq!(kept.collect::<Vec<_>>(), ["error"], "{name}: nothing made is an error");
        let matrix = list(&job["strategy"]["matrix"], "include");
        let processors: BTreeSet<_> =
            matrix.iter().map(|entry| entry["processor"].as_str().unwrap()).collect();
        assert_eq!(processors, BTreeSet::from(["aarch64", "x86_64"]), "{name}");
    }
}

/// The archive that a release publishes, made of the program under test.
#[test]
fn the_archive_of_a_release_has_what_a_package_needs() {
    let folder = tempfile::tempdir().unwrap();
    let packed = Process::new(Path::new(ROOT).join(".ci/archive"))
        .arg(env!("CARGO_BIN_EXE_headlong"))
        .args(["headlong-test", "dist"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let shell = |script: &str| {
        let output =
            Process::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    shell("cd dist && sha256sum -c headlong-test.tar.gz.sha256");
    shell("tar -xzf dist/headlong-test.tar.gz");
    let listed = shell("cd headlong-test && find . -type f | sort");
    for file in [
        "LICENSE",
        "CHANGELOG.md",
        "headlong",
        "completions/headlong.bash",
        "completions/headlong.fish",
        "completions/headlong.zsh",
        "man/headlong.1",
        "man/headlong-train.1",
    ] {
        assert!(listed.lines().any(|line| line == format!("./{file}")), "{file}: {listed}");
    }
    let version = shell("headlong-test/headlong --version");
    assert_eq!(version.trim(), concat!("headlong ", env!("CARGO_PKG_VERSION")));
}
