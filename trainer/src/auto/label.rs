//! Which column is the label, and whether another can be the weight.

use super::Look;
use crate::error::{Error, Result};
use crate::metrics::columns::summary::ColumnSummary;

/// Names of labels, in small letters.
const NAMES: [&str; 19] = [
    "label",
    "labels",
    "click",
    "clicks",
    "clicked",
    "is_click",
    "is_clicked",
    "isclick",
    "target",
    "y",
    "class",
    "conversion",
    "converted",
    "outcome",
    "response",
    "purchase",
    "purchased",
    "survived",
    "churn",
];

/// The column that holds the label, and why: the one that was `asked` for, or the only one of 0 and
/// 1 that is called like one.
///
/// # Errors
/// None, several, or one that is no label; each names `--label`.
pub(super) fn label_of(
    columns: &[ColumnSummary],
    asked: Option<&str>,
    ignored: &[String],
) -> Result<(usize, String)> {
    let refuse = |message: String| Err(Error::config("--label", message));
    if columns.len() < 2 {
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        return refuse(format!(
            "expected a label and at least one column to learn it from, found {} column: {}",
            columns.len(),
            names.join(", ")
        ));
    }
    if let Some(asked) = asked {
        let at = place_of(columns, asked, "--label")?;
        return match fault(&columns[at]) {
            Some(fault) => refuse(format!("column `{asked}`: {fault}")),
            None => Ok((at, "asked for by --label".to_owned())),
        };
    }
    let of_one_class: Vec<usize> =
        (0..columns.len()).filter(|&at| is_of_one_class(&columns[at])).collect();
    let candidates: Vec<usize> = (0..columns.len())
        .filter(|&at| fault(&columns[at]).is_none() && !ignored.contains(&columns[at].name))
        .collect();
    let is_named = |at: &usize| is_called_label(&columns[*at].name);
    let named: Vec<usize> = candidates.iter().copied().filter(|at| is_named(at)).collect();
    let names = |places: &[usize]| listed(places.iter().map(|&at| columns[at].name.as_str()));
    match (&named[..], &candidates[..]) {
        (&[only], _) => Ok((only, "the only column of 0 and 1 that is called like one".to_owned())),
        ([], []) if !of_one_class.is_empty() => refuse(format!(
            "no column holds both 0 and 1 in the rows looked at, and {} only one of them: a model \
             learns from both; take more rows, or files in another order",
            match of_one_class[..] {
                [only] => format!("{} holds", names(&[only])),
                ref several => format!("{} hold", names(several)),
            }
        )),
        ([], []) => refuse(
            "no column holds only 0 and 1, false and true, or no and yes: make one that does, and \
             name it with --label COL"
                .to_owned(),
        ),
        ([], candidates) => refuse(format!(
            "no column is called like a label; {} {} 0 and 1: name one with --label COL",
            names(candidates),
            if candidates.len() == 1 { "holds" } else { "hold" }
        )),
        (several, _) => {
            refuse(format!("{} could each be the label: name one with --label COL", names(several)))
        }
    }
}

/// Whether a column has the name of a label.
pub(super) fn is_called_label(name: &str) -> bool {
    NAMES.contains(&name.to_lowercase().as_str())
}

/// Whether a column would be a label if it had the other class, too.
fn is_of_one_class(column: &ColumnSummary) -> bool {
    let is_label = column.forms.truths == column.present && column.missing == 0;
    is_label && column.present > 0 && column.distinct == 1 && !column.is_list
}

/// Where the column is that was asked for as the weight, and what is said of it; `label` is where
/// the label is.
///
/// # Errors
/// One that there is not, that is the label, or that holds anything but numbers of 0 or more.
pub(super) fn weight_of(look: &Look, label: usize, asked: &str) -> Result<(usize, String)> {
    let refuse = |message: String| Err(Error::config("--weight", message));
    if look.is_criteo {
        return refuse("Criteo's text has no column of weights: leave it out".to_owned());
    }
    let at = place_of(&look.columns, asked, "--weight")?;
    let column = &look.columns[at];
    if at == label {
        return refuse(format!("column `{asked}` is the label"));
    }
    match &column.numbers {
        _ if column.missing > 0 => {
            let (missing, rows) = (column.missing, column.present + column.missing);
            refuse(format!("column `{asked}`: {missing} of {rows} fields are empty"))
        }
        Some(numbers) if numbers.maximum == 0.0 && numbers.minimum == 0.0 => {
            refuse(format!("column `{asked}` is 0 everywhere: no row would count"))
        }
        Some(numbers) if numbers.minimum >= 0.0 => {
            let mut why = "asked for by --weight: how much each row counts".to_owned();
            if !(0.5..2.0).contains(&numbers.mean) {
                why += &format!(
                    "; {:.3} on average, which acts like that many times the learning rate: \
                     divide by it to have 1",
                    numbers.mean
                );
            }
            Ok((at, why))
        }
        Some(numbers) => refuse(format!(
            "column `{asked}`: expected numbers of 0 or more, found {}",
            numbers.minimum
        )),
        None => match column.refused {
            Some(kind) => {
                refuse(format!("column `{asked}`: expected numbers of 0 or more, found {kind}"))
            }
            None => refuse(format!(
                "column `{asked}`: expected numbers of 0 or more, and {} of {} fields are none",
                column.forms.words + column.forms.times + column.forms.infinite,
                column.present
            )),
        },
    }
}

/// Where the column is that `flag` names; the error names those that there are.
fn place_of(columns: &[ColumnSummary], asked: &str, flag: &str) -> Result<usize> {
    columns.iter().position(|column| column.name == asked).ok_or_else(|| {
        let names = listed(columns.iter().map(|column| column.name.as_str()));
        Error::config(flag, format!("there is no column `{asked}` among {names}"))
    })
}

/// Why a column is no label.
fn fault(column: &ColumnSummary) -> Option<String> {
    let examples = column.examples.join("`, `");
    if let Some(refused) = column.refused {
        return Some(format!("expected 0 and 1, found {refused}"));
    }
    if column.is_list || column.forms.truths < column.present || column.present == 0 {
        return Some(format!("expected 0 and 1, found `{examples}`"));
    }
    if column.missing > 0 {
        let (missing, rows) = (column.missing, column.present + column.missing);
        return Some(format!("expected 0 or 1 in every row, found {missing} of {rows} empty"));
    }
    (column.distinct < 2)
        .then(|| format!("expected both 0 and 1, found `{examples}` in every row looked at"))
}

/// Some names, and how many more there are.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 12;
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{} and {more} more", names[..MOST].join(", ")),
        _ => names.join(", "),
    }
}
