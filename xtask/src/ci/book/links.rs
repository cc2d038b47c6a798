//! The links inside the site: each leads to a page that is there, and to a place on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::process::At as _;
use crate::tidy::text;

/// What a page of the site has.
#[derive(Default)]
struct Page {
    places: BTreeSet<String>,
    links: Vec<String>,
}

/// The pages by their paths, and every other file.
pub struct Site {
    pages: BTreeMap<String, Page>,
    files: BTreeSet<String>,
}

impl Site {
    /// Reads the site in `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut site = Self { pages: BTreeMap::new(), files: BTreeSet::new() };
        site.read_folder(folder, "")?;
        Ok(site)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(folder).at(folder)? {
            let path = entry.at(folder)?.path();
            let name =
                format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
            if path.is_dir() {
                self.read_folder(&path, &format!("{name}/"))?;
                continue;
            }
            // All pages in one, for printers, whose places have other names; and the page of
            // addresses that are not there, which may be anywhere.
            if name.ends_with(".html") && name != "print.html" && name != "404.html" {
                self.pages.insert(name.clone(), Page::parse(&fs::read_to_string(&path).at(&path)?));
            }
            self.files.insert(name);
        }
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.pages.len()
    }

    pub fn num_links(&self) -> usize {
        self.pages.values().map(|page| page.links.len()).sum()
    }

    /// A line for each link that leads nowhere.
    pub fn broken_links(&self) -> Vec<String> {
        let all = self
            .pages
            .iter()
            .flat_map(|(name, page)| page.links.iter().map(move |link| (name, link)));
        let broken = all.filter(|(name, link)| !self.leads_somewhere(name, link));
        broken.map(|(name, link)| format!("{name}: the link `{link}` leads nowhere")).collect()
    }

    fn leads_somewhere(&self, from: &str, link: &str) -> bool {
        if link.contains("://") || link.starts_with("mailto:") {
            return true;
        }
        let (path, place) = link.split_once('#').unwrap_or((link, ""));
        let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = if path.is_empty() { from.to_owned() } else { text::join(folder, path) };
        match self.pages.get(&path) {
            Some(page) => place.is_empty() || page.places.contains(place),
            None => self.files.contains(&path) && place.is_empty(),
        }
    }
}

impl Page {
    fn parse(html: &str) -> Self {
        let values = |name: &str| {
            let parts =
                html.split(&format!(" {name}=\"")).skip(1).map(str::to_owned).collect::<Vec<_>>();
            parts.into_iter().filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        };
        let links = values("href").chain(values("src"));
        Self {
            places: values("id").collect(),
            links: links.filter(|link| !link.is_empty()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nothing_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        write("index.html", r#"<a href="a/b.html#here">x</a> <img src="c.svg"> <p id="top">"#);
        write("a/b.html", r##"<h1 id="here"><a href="../index.html#top"><a href="#here">"##);
        write("c.svg", "");
        let site = Site::read(folder.path()).unwrap();
        assert_eq!((site.count(), site.num_links()), (2, 4));
        assert_eq!(site.broken_links(), [""; 0]);
        write("a/b.html", r##"<a href="../index.html#no"><a href="d.html"><a href="#here">"##);
        let site = Site::read(folder.path()).unwrap();
        let broken = site.broken_links();
        assert_eq!(broken.len(), 4, "{broken:?}");
        assert!(broken[0].contains("a/b.html: the link `../index.html#no`"));
        assert!(broken[3].contains("index.html: the link `a/b.html#here`"));
    }
}
