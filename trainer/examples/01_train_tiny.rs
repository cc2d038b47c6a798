//! Trains a small DLRM from a program of one's own: steps, evaluations and checkpoints, as many and
//! whenever the program likes.
//!
//! ```text
//! cargo run --release -p headlong --example 01_train_tiny
//! ```

use headlong::{Config, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;

    // Every setting has a key, here as on the command line: `headlong config show` prints them all.
    let mut config = Config::preset("tiny")?;
    config.set_all(&["synthetic.train_rows=40_000", "synthetic.valid_rows=10_000"])?;
    config.run.output_dir = folder.path().to_owned();
    config.checkpoint.dir = Some(folder.path().join("checkpoints"));

    // The synthetic data is written, and everything is planned and allocated here; after this, a
    // step allocates nothing.
    let mut session = Session::open(&config)?;
    while let Some(step) = session.step()? {
        if session.steps().is_multiple_of(100) {
            let metrics = session.evaluate()?.ok_or("there is no validation data")?;
            let auc = metrics.auc.unwrap_or(f64::NAN);
            println!("step {:>3}  loss {:.4}  AUC {auc:.4}", session.steps(), step.loss);
        }
    }

    // The checkpoint resumes training in the same bits, evaluates, predicts, or exports to PyTorch.
    let metrics = session.evaluate()?.ok_or("there is no validation data")?;
    let probabilities =
        session.predict([config.run.output_dir.join("synthetic-data/valid.txt")])?;
    println!("{} rows, AUC {:.4}", probabilities.len(), metrics.auc.unwrap_or(f64::NAN));
    println!("saved in {}, weights {}", session.save()?.display(), session.weights_digest()?);
    Ok(())
}
