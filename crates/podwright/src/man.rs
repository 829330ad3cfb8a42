//! Manual pages, from the same definitions as the help.

use std::io;
use std::path::Path;

use crate::cli::Cli;

/// Write all of them into a directory: `podwright.1`, `podwright-run.1`, …
pub(crate) fn write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // `run` shows the program's name as its own, because it is what the name `kubelet` means.
    let definition = Cli::definition().mut_subcommand("run", |run| run.display_name("podwright-run"));
    clap_mangen::generate_to(definition, dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// Where the pages are kept; the test runs in the crate's directory.
    const KEPT: &str = "../../docs/man";

    fn pages(dir: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let page = |entry: fs::DirEntry| {
            Some((entry.file_name().to_str()?.to_owned(), fs::read_to_string(entry.path()).ok()?))
        };
        entries.filter_map(page).filter(|(name, _)| name.ends_with(".1")).collect()
    }

    #[test]
    fn the_pages_that_are_kept_are_true() {
        let made = tempfile::tempdir().expect("a directory");
        write(made.path()).expect("written");
        let made = pages(made.path());
        assert!(made.contains_key("podwright.1") && made.contains_key("podwright-run.1"), "{:?}", made.keys());
        if std::env::var_os("PODWRIGHT_BLESS").is_some() {
            let _ = fs::remove_dir_all(KEPT);
            write(Path::new(KEPT)).expect("written");
        }
        let kept = pages(Path::new(KEPT));
        let old: Vec<&String> = made.keys().filter(|name| kept.get(*name) != made.get(*name)).collect();
        assert!(old.is_empty() && kept.len() == made.len(), "docs/man is old ({old:?}): make man");
    }
}
