//! Manual pages, generated from the same definitions as the help.

use std::io;
use std::path::Path;

use crate::cli::Cli;

/// Writes all pages into a directory: `podwright.1`, `podwright-run.1`, …
pub(crate) fn write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // The display name of `run` is the program's, because `kubelet` means `podwright run`; its page needs its own name.
    let definition = Cli::definition().mut_subcommand("run", |run| run.display_name("podwright-run"));
    clap_mangen::generate_to(definition, dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// The committed pages; tests run in the crate's directory.
    const COMMITTED: &str = "../../docs/man";

    fn pages(dir: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let page = |entry: fs::DirEntry| {
            Some((entry.file_name().to_str()?.to_owned(), fs::read_to_string(entry.path()).ok()?))
        };
        entries.filter_map(page).filter(|(name, _)| name.ends_with(".1")).collect()
    }

    #[test]
    fn committed_pages_are_up_to_date() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path()).expect("written");
        let generated = pages(dir.path());
        assert!(
            generated.contains_key("podwright.1") && generated.contains_key("podwright-run.1"),
            "{:?}",
            generated.keys()
        );
        if std::env::var_os("PODWRIGHT_BLESS").is_some() {
            let _ = fs::remove_dir_all(COMMITTED);
            write(Path::new(COMMITTED)).expect("written");
        }
        let committed = pages(Path::new(COMMITTED));
        let outdated: Vec<&String> =
            generated.keys().filter(|name| committed.get(*name) != generated.get(*name)).collect();
        assert!(
            outdated.is_empty() && committed.len() == generated.len(),
            "docs/man is outdated ({outdated:?}): run `make man`"
        );
    }
}
