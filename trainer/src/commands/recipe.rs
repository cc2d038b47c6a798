//! `headlong recipe`: the command lines of MLPerf's two recommendation models, for one GPU, one
//! machine of eight, and fourteen of these.
//!
//! Batch sizes, learning rates and schedules are the published reference points (the notes in
//! `configs/` say whose); evaluation points and targets are the rules'.

use crate::commands::cli::{RecipeArguments, RecipeMachine, RecipeModel};
use crate::error::Result;
use crate::report::output;
use std::fmt::Write as _;

/// What a model has on every machine.
struct Recipe {
    model: RecipeModel,
    title: &'static str,
    /// Preset, data, target: the rules.
    rules: &'static [&'static str],
    machines: [OnMachine; 3],
}

/// What a model has on one machine.
struct OnMachine {
    machine: RecipeMachine,
    note: &'static str,
    /// What the batch size brings with it.
    flags: &'static [&'static str],
}

/// A batch of 55,296 is preset in both models.
const RECIPES: [Recipe; 2] = [
    Recipe {
        model: RecipeModel::Dlrm,
        title: "DLRM, one-hot (MLPerf training v0.7 to v2.1): AUC 0.8025 within one epoch, 20 \
                evaluations",
        rules: &[
            "--preset criteo-terabyte-dlrm",
            "--data DATA/train.bin --valid DATA/val.bin",
            "--set data.format=mlperf --set data.ids=modulo",
            "--target-auc 0.8025 --eval-every 0.05",
        ],
        machines: [
            OnMachine {
                machine: RecipeMachine::OneGpu,
                note: "89.5 GiB of tables: a GPU of 141 GB",
                flags: &["--eval-batch-size 262144"],
            },
            OnMachine {
                machine: RecipeMachine::EightGpus,
                note: "the batch and the rates of the published runs on eight GPUs",
                flags: &["--eval-batch-size 1769472"],
            },
            OnMachine {
                machine: RecipeMachine::FourteenNodes,
                note: "the batch and the rates of the published run on 14 machines of eight",
                flags: &[
                    "--batch-size 71680 --learning-rate 26",
                    "--set train.warmup_steps=2500 --set train.decay_start_step=46821 --set \
                     train.decay_steps=15406",
                    "--eval-batch-size 1792000",
                ],
            },
        ],
    },
    Recipe {
        model: RecipeModel::Dcnv2,
        title: "DLRM-DCNv2, multi-hot (MLPerf training v3.0 to v6.0): AUC 0.80275 within one \
                epoch, 20 evaluations",
        rules: &[
            "--preset criteo-terabyte-dcnv2",
            "--data DATA/train_data.bin --valid DATA/val_data.bin",
            "--set data.format=raw --set data.ids=modulo",
            "--target-auc 0.80275 --eval-every 0.05",
        ],
        machines: [
            OnMachine {
                machine: RecipeMachine::OneGpu,
                note: "tables cut to half their rows, so that they fit with Adagrad's state: \
                       outside of the rules (open division)",
                flags: &["--set tables.max_rows=20000000 --eval-batch-size 65536"],
            },
            OnMachine {
                machine: RecipeMachine::EightGpus,
                note: "the batch and the rate of the published runs on eight GPUs",
                flags: &["--set mlperf.division=closed", "--eval-batch-size 262144"],
            },
            OnMachine {
                machine: RecipeMachine::FourteenNodes,
                note: "the batch and the rate of the published runs on 128 GPUs",
                flags: &[
                    "--set mlperf.division=closed",
                    "--batch-size 134400 --learning-rate 0.0034",
                    "--eval-batch-size 1075200",
                ],
            },
        ],
    },
];

impl RecipeMachine {
    fn title(self) -> &'static str {
        match self {
            Self::OneGpu => "1 GPU",
            Self::EightGpus => "8 GPUs",
            Self::FourteenNodes => "14 machines of 8 GPUs",
        }
    }

    /// What starts the ranks.
    fn launcher(self) -> &'static str {
        match self {
            Self::OneGpu => "headlong train",
            Self::EightGpus => "headlong launch -n 8 -- train",
            Self::FourteenNodes => "srun -N 14 --ntasks-per-node=8 headlong train",
        }
    }
}

/// What is the same everywhere.
const COMMON: [&str; 2] = [
    "--device cuda --precision f16 --schedule captured",
    "--mllog mlperf.log --set mlperf.org=ORG --set mlperf.platform=PLATFORM",
];

/// Prints the recipes, or those that are asked for.
///
/// # Errors
/// Standard output that cannot be written.
pub fn run(arguments: &RecipeArguments) -> Result<()> {
    let is_asked_for = |model, machine| {
        arguments.model.is_none_or(|asked| asked == model)
            && arguments.machine.is_none_or(|asked| asked == machine)
    };
    output::print(&text(is_asked_for))
}

fn text(is_asked_for: impl Fn(RecipeModel, RecipeMachine) -> bool) -> String {
    let mut text = String::new();
    for recipe in &RECIPES {
        for on in recipe.machines.iter().filter(|on| is_asked_for(recipe.model, on.machine)) {
            let lines = recipe.rules.iter().chain(on.flags).chain(&COMMON);
            let command =
                lines.fold(on.machine.launcher().to_owned(), |text, line| text + " \\\n  " + line);
            let _ = write!(
                text,
                "# {}\n# {}: {}\n{command}\n\n",
                recipe.title,
                on.machine.title(),
                on.note
            );
        }
    }
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;
    use crate::commands::cli::{Cli, Command};
    use crate::config::EvalEvery;
    use clap::Parser as _;

    /// The part of a printed command from `train` on.
    fn commands() -> Vec<Vec<String>> {
        let text = text(|_, _| true);
        let lines: String = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.to_owned() + "\n")
            .collect();
        let commands = lines.replace("\\\n", " ");
        let commands = commands.lines().filter(|line| !line.is_empty());
        commands
            .map(|line| {
                line.split_whitespace()
                    .skip_while(|&word| word != "train")
                    .map(str::to_owned)
                    .collect()
            })
            .collect()
    }

    #[test]
    fn every_command_is_one_of_this_program_and_keeps_the_rules() {
        let commands = commands();
        assert_eq!(commands.len(), 6);
        for words in commands {
            // Kernels of a device are refused on a machine without one, and so is nothing else.
            let words = ["headlong".to_owned()].into_iter().chain(words);
            let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            let Some(Command::Train(arguments)) = cli.command else {
                panic!("not a training command")
            };
            let (config, options) = match arguments.resolve(&Registry::default()) {
                Ok(resolved) => resolved,
                Err(error) if error.to_string().contains("criteo-terabyte-dcnv2") => continue,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(config.eval.every, EvalEvery::EpochFraction(0.05));
            assert!(config.eval.target_auc.is_some() && options.mllog.is_some());
            assert!(
                config.train.batch_size.is_multiple_of(112) || config.train.batch_size == 55_296
            );
        }
    }

    #[test]
    fn the_page_shows_what_is_printed() {
        let page = include_str!("../../../docs/mlperf.md");
        let shown: String =
            page.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        assert_eq!(shown, text(|_, _| true).replace("\n\n#", "\n#"));
    }
}
