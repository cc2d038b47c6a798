//! Tables whose rows share storage: right ones pass, and of broken ones the suite says what is
//! broken.

#![cfg(test)]

use crate::common::whole::{Broken, Shape, WholeKind};
use headlong_embedding::testing::check_table;
use headlong_embedding::{Grain, Init, TableSpec};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn spec(rows: u64, dim: usize) -> TableSpec {
    TableSpec { kind: "own".to_owned(), grain: Grain::Whole, ..TableSpec::new("own", rows, dim) }
}

#[test]
fn tables_whose_rows_share_storage_conform() {
    for shape in Shape::ALL {
        for (rows, dim) in [(2, 1), (3, 2), (60, 5), (5000, 16)] {
            check_table(&WholeKind { shape, broken: Broken::Nothing }, &spec(rows, dim));
        }
        let wide = TableSpec { init: Init::Uniform { bound: 0.7 }, ..spec(80, 8) };
        check_table(&WholeKind { shape, broken: Broken::Nothing }, &wide);
    }
}

/// What the suite says, where it finds something.
fn verdict(shape: Shape, broken: Broken) -> Option<String> {
    let checked =
        catch_unwind(AssertUnwindSafe(|| check_table(&WholeKind { shape, broken }, &spec(60, 5))));
    let panic = checked.err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"").to_string()))
}

#[test]
fn broken_tables_are_found_and_the_promise_is_named() {
    std::panic::set_hook(Box::new(|_| {}));
    let (derivative, formula) = ("a step of SGD goes by", "expected");
    let of_any_shape = [
        (Broken::StepsTwice, derivative),
        (Broken::TenfoldRate, derivative),
        (Broken::RateOfFirstStep, derivative),
        (Broken::NumberIsOne, formula),
        (Broken::StateOfRowZero, formula),
        (Broken::StateIsForgotten, formula),
        (Broken::MemoryIsAHundredth, "and saves"),
        (Broken::StateIsMisnamed, "is in the place of state"),
        (Broken::StatesComeLast, "is in the place of state"),
        (Broken::StateIsNotListed, "is in the place of state"),
        (Broken::StateIsNotSaved, formula),
        (Broken::LoadSwapsRows, derivative),
        (Broken::EpsilonInside, formula),
        (Broken::SumOfSquares, formula),
        (Broken::LastGradientForAll, derivative),
        (Broken::NextRowMoves, derivative),
        (Broken::WeightsDecay, "a step of no rows changes the table"),
        (Broken::GradientsLinger, derivative),
        (Broken::GradientsAreClipped, derivative),
        (Broken::EachRowSteps, derivative),
        (Broken::SharedGradientIsOverwritten, derivative),
        (Broken::SameInEveryTable, "another table has the same initial values"),
        (Broken::LookupCounts, "place in the list"),
        (Broken::EmptyStepCounts, "a step of no rows changes the table"),
        (Broken::SignOfSecond, derivative),
        (Broken::SecondIsNotTrained, derivative),
    ];
    let mut wrong = Vec::new();
    let of_products = [(Broken::FirstForgetsSecond, derivative)];
    for shape in Shape::ALL {
        let products = if shape == Shape::DoubleHash { &[][..] } else { &of_products };
        for &(broken, promise) in of_any_shape.iter().chain(products) {
            // The sum of two rows does not depend on where they lie: its steps may be taken one by
            // one.
            if (shape, broken) == (Shape::DoubleHash, Broken::EachRowSteps) {
                continue;
            }
            let found = verdict(shape, broken).unwrap_or_default();
            if !found.contains(promise) {
                wrong.push(format!("{shape:?} {broken:?}, expected \"{promise}\": {found}"));
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
