//! Finds the cgroup hierarchies of the host in its mounts.

use std::collections::BTreeSet;
use std::path::Path;

use super::{CgroupError, CgroupPath, CgroupTree, CgroupVersion, Hierarchy};
use crate::mountinfo::{self, Mount};

impl CgroupTree {
    /// The hierarchies of this host.
    pub fn detect() -> Result<Self, CgroupError> {
        Self::from_mounts(&mountinfo::read().map_err(CgroupError::Mounts)?)
    }

    /// The hierarchies in these mounts.
    fn from_mounts(mounts: &[Mount]) -> Result<Self, CgroupError> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts {
            let Some(found) = hierarchy(mount) else { continue };
            // The same hierarchy may be mounted twice, also by bind mounts of containers; the shortest path is the host's.
            let same = |h: &&mut Hierarchy| h.version == found.version && h.controllers == found.controllers;
            match hierarchies.iter_mut().find(same) {
                Some(known) if known.root.as_os_str().len() > found.root.as_os_str().len() => *known = found,
                Some(_) => {}
                None => hierarchies.push(found),
            }
        }
        let v1 = hierarchies.iter().any(|h| h.controllers.iter().any(|c| c != SYSTEMD));
        let version = if v1 { CgroupVersion::V1 } else { CgroupVersion::V2 };
        if v1 {
            hierarchies.iter_mut().for_each(|h| h.unmanaged = h.version == CgroupVersion::V2);
        } else {
            // A v1 hierarchy without controllers is only systemd's process tracking.
            hierarchies.retain(|h| h.version == CgroupVersion::V2);
        }
        if hierarchies.is_empty() {
            return Err(CgroupError::NoHierarchy);
        }
        Ok(Self { version, hierarchies, plain: false })
    }

    /// The same hierarchies, as they appear in a cgroup namespace whose root is this cgroup. For tests of another systemd.
    pub fn namespace(&self, root: &CgroupPath) -> Self {
        let inside = |h: &Hierarchy| Hierarchy { root: root.under(&h.root), ..h.clone() };
        Self { hierarchies: self.hierarchies.iter().map(inside).collect(), ..self.clone() }
    }

    /// A v2 tree of plain files below this directory, for tests. Its root has these controllers.
    pub fn plain_v2(root: &Path, controllers: &[&str]) -> std::io::Result<Self> {
        std::fs::write(root.join("cgroup.controllers"), controllers.join(" "))?;
        let hierarchy =
            Hierarchy { root: root.into(), version: CgroupVersion::V2, controllers: BTreeSet::new(), unmanaged: false };
        Ok(Self { version: CgroupVersion::V2, hierarchies: vec![hierarchy], plain: true })
    }

    /// v1 hierarchies of plain files below this directory, for tests: `["cpu,cpuacct", "memory"]`.
    #[cfg(test)]
    pub(crate) fn plain_v1(root: &Path, hierarchies: &[&str]) -> std::io::Result<Self> {
        let mut found = Vec::new();
        for name in hierarchies {
            let root = root.join(name);
            std::fs::create_dir_all(&root)?;
            let controllers = name.split(',').map(str::to_owned).collect();
            found.push(Hierarchy { root, version: CgroupVersion::V1, controllers, unmanaged: false });
        }
        Ok(Self { version: CgroupVersion::V1, hierarchies: found, plain: true })
    }
}

fn hierarchy(mount: &Mount) -> Option<Hierarchy> {
    let (version, controllers) = match mount.fstype.as_str() {
        "cgroup2" => (CgroupVersion::V2, BTreeSet::new()),
        "cgroup" => {
            let known = |o: &&str| CONTROLLERS.contains(o) || *o == SYSTEMD;
            let found: BTreeSet<String> = mount.super_options.split(',').filter(known).map(str::to_owned).collect();
            if found.is_empty() {
                return None;
            }
            (CgroupVersion::V1, found)
        }
        _ => return None,
    };
    Some(Hierarchy { root: mount.point.clone(), version, controllers, unmanaged: false })
}

/// systemd's v1 hierarchy, which has no controllers; runtimes create their cgroups there too.
const SYSTEMD: &str = "name=systemd";
/// The controllers of v1 (Documentation/admin-guide/cgroup-v1). Other mount options are not controllers.
const CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(lines: &str) -> Result<CgroupTree, CgroupError> {
        CgroupTree::from_mounts(&mountinfo::parse(lines.as_bytes()).unwrap())
    }

    #[test]
    fn one_tree() {
        let tree = detect("30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n").unwrap();
        assert_eq!((tree.version(), tree.hierarchies.len()), (CgroupVersion::V2, 1));
    }

    #[test]
    fn v1_with_controllers_mounted_together_and_twice() {
        let tree = detect(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
             33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
             34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
             90 31 0:30 /x /var/lib/some/container/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
             91 31 0:31 / /elsewhere rw - cgroup cgroup rw,name=elsewhere\n"
                .replace("             ", "")
                .as_str(),
        )
        .unwrap();
        let roots: Vec<_> = tree.hierarchies.iter().map(|h| h.root.to_str().unwrap()).collect();
        assert_eq!(roots, ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd"]);
        assert_eq!(tree.version(), CgroupVersion::V1);
        assert!(tree.hierarchies[0].controllers.contains("cpuacct"));
    }

    #[test]
    fn hybrid_makes_groups_in_v1_only() {
        let tree = detect(
            "32 31 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert_eq!(tree.version(), CgroupVersion::V1);
        assert_eq!(tree.managed().count(), 1);
        assert_eq!(tree.hierarchies.len(), 2);
    }

    #[test]
    fn v1_without_controllers_is_v2() {
        let tree = detect(
            "34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert_eq!((tree.version(), tree.hierarchies.len()), (CgroupVersion::V2, 1));
    }

    #[test]
    fn none_is_an_error() {
        assert!(matches!(detect("1 1 0:1 / / rw - ext4 x rw\n"), Err(CgroupError::NoHierarchy)));
    }
}
