//! Step 11, masked and read-only paths, reached without following any link: they cannot be redirected (CVE-2025-31133,
//! CVE-2025-52565).

use std::os::fd::BorrowedFd;

use podwright_linux::fsctx::{self, FsContext, MountChange, attributes};
use rustix::fs::FileType;

use super::sources::MountSources;
use super::targets::open_existing;
use super::{LaunchFailure, LaunchStep};
use crate::plan::LaunchPlan;

/// Applies the paths at or below `below` (a mount point, or `/`), whose root is `base`. Paths below one of `except` belong to
/// another base.
pub(super) fn apply(
    plan: &LaunchPlan,
    base: BorrowedFd<'_>,
    below: &str,
    except: &[String],
    sources: &MountSources,
) -> Result<(), LaunchFailure> {
    let mine = |path: &&String| inside(path, below).is_some() && !except.iter().any(|e| inside(path, e).is_some());
    for path in plan.readonly_paths.iter().filter(mine) {
        let Some(open) = open_existing(base, inside(path, below).unwrap_or_default())? else { continue };
        let failed = |e| LaunchFailure::io(LaunchStep::Mask, format!("make {path} read-only"), &e);
        let tree = fsctx::clone_tree(&open, true).map_err(failed)?;
        fsctx::change(&tree, true, &MountChange { set: attributes::RDONLY, ..MountChange::default() })
            .map_err(failed)?;
        fsctx::attach(&tree, &open).map_err(failed)?;
    }
    for (index, path) in plan.masked_paths.iter().enumerate().filter(|(_, path)| mine(path)) {
        let Some(open) = open_existing(base, inside(path, below).unwrap_or_default())? else { continue };
        let failed = |e| LaunchFailure::io(LaunchStep::Mask, format!("mask {path}"), &e);
        let stat = rustix::fs::fstat(&open).map_err(|e| failed(e.into()))?;
        let cover = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let empty = FsContext::open("tmpfs").map_err(failed)?;
            empty.set("mode", "755").map_err(failed)?;
            empty
                .mount(attributes::RDONLY | attributes::NOSUID | attributes::NODEV | attributes::NOEXEC)
                .map_err(failed)?
        } else {
            // Each mask has its own: a detached mount cannot be cloned before 6.15.
            fsctx::attach(&sources.nulls[index], &open).map_err(failed)?;
            continue;
        };
        fsctx::attach(&cover, &open).map_err(failed)?;
    }
    Ok(())
}

/// The rest of a path below a directory.
pub(super) fn inside<'a>(path: &'a str, below: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(below.trim_end_matches('/'))?;
    rest.strip_prefix('/').filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_inside_whole_names_only() {
        assert_eq!(inside("/proc/kcore", "/proc"), Some("kcore"));
        assert_eq!(inside("/process", "/proc"), None);
        assert_eq!(inside("/proc", "/proc"), None);
        assert_eq!(inside("/etc/shadow", "/"), Some("etc/shadow"));
    }
}
