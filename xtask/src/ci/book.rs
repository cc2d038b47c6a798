//! The step `book`: the tutorials of `docs/tutorials/` are followed to the letter, the site is
//! built by mdBook, and its links and its search are checked.

mod links;
mod search;
mod site;
mod tutorial;

use anyhow::Result;

use super::{Outcome, Workshop};

pub fn book(workshop: &Workshop) -> Result<Outcome> {
    let followed = tutorial::follow_all(workshop)?;
    Ok(followed.and(site::build_and_check(&workshop.root, &workshop.target())?))
}
