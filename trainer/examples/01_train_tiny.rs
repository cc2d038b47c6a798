//! Trains a small DLRM from a program of one's own: configuration, data, model, session; then
//! steps, evaluations and checkpoints, as many and whenever the program likes.
//!
//! ```text
//! cargo run --release -p headlong --example 01_train_tiny
//! ```

use headlong::config::preset::preset;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start};
use headlong_embedding::Registry;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;

    // Every setting has a key, here as on the command line: `headlong config show` prints them all.
    let mut config = preset("tiny")?;
    config.set_all(&[
        "synthetic.train_rows=40_000".to_owned(),
        "synthetic.valid_rows=10_000".to_owned(),
    ])?;
    config.run.output_dir = folder.path().to_owned();
    config.checkpoint.dir = Some(folder.path().join("checkpoints"));
    config.validate()?;

    // The files of the run: here the synthetic data set, written now. A reporter says on the
    // terminal what a run does.
    let threads = 2;
    let prepared = Prepared::new(&config, None, threads, &Reporter::quiet(None))?;
    let best = prepared.synthetic().map_or(f64::NAN, |report| report.best_auc);

    // Everything is planned and allocated here; after this, a step allocates nothing.
    let registry = Registry::default();
    let group =
        RankGroup::build(&config, &prepared.table_rows, RankGroupOptions::new(threads, &registry))?;
    let data = prepared.session_data(&config, threads)?;
    let mut session = Session::open(&config, group, data, &Start::Fresh)?;

    while let Some(step) = session.step()? {
        if session.steps().is_multiple_of(100) {
            let metrics = session.evaluate()?.ok_or("there is no validation data")?;
            println!(
                "step {:>3}  loss {:.4}  AUC {:.4} of at most {best:.4}",
                session.steps(),
                step.loss,
                metrics.auc.unwrap_or(f64::NAN)
            );
        }
    }

    // The checkpoint resumes training in the same bits, evaluates, predicts, or exports to PyTorch.
    let metrics = session.evaluate()?.ok_or("there is no validation data")?;
    let saved = session.save(Some("finished"))?.ok_or("there is no folder of checkpoints")?;
    println!("{} samples, AUC {:.4}", session.samples(), metrics.auc.unwrap_or(f64::NAN));
    println!("{} bytes in {}, weights {}", saved.bytes, saved.path.display(), saved.weights_digest);
    Ok(())
}
