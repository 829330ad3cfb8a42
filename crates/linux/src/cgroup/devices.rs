//! Which device nodes the processes of a cgroup may open or make: files in v1, a program in v2.
//!
//! The last rule that is about a device and a kind of access decides about it; without one the access is refused.

mod program;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::{CgroupError, CgroupPath, CgroupTree, CgroupVersion};

/// The devices that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Character and block devices.
    All,
    /// Character devices.
    Char,
    /// Block devices.
    Block,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// Otherwise the access is refused.
    pub allow: bool,
    /// The devices.
    pub kind: DeviceKind,
    /// `None`: every major number.
    pub major: Option<u32>,
    /// `None`: every minor number.
    pub minor: Option<u32>,
    /// Opening for reading.
    pub read: bool,
    /// Opening for writing.
    pub write: bool,
    /// Making a node.
    pub mknod: bool,
}

impl DeviceRule {
    /// Everything, as the first rule of a list.
    pub fn everything(allow: bool) -> Self {
        Self { allow, kind: DeviceKind::All, major: None, minor: None, read: true, write: true, mknod: true }
    }

    /// `c 1:3 rwm`, the form of v1. A rule for both kinds that is not about everything is written as two.
    fn texts(&self) -> Vec<String> {
        let number = |of: Option<u32>| of.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let letter = |set: bool, letter: &'static str| if set { letter } else { "" };
        let access = [letter(self.read, "r"), letter(self.write, "w"), letter(self.mknod, "m")].concat();
        let text = |kind: char| format!("{kind} {}:{} {access}", number(self.major), number(self.minor));
        match self.kind {
            _ if access.is_empty() => vec![],
            DeviceKind::All if *self == Self::everything(self.allow) => vec!["a".to_owned()],
            DeviceKind::All => vec![text('c'), text('b')],
            DeviceKind::Char => vec![text('c')],
            DeviceKind::Block => vec![text('b')],
        }
    }
}

impl CgroupTree {
    /// Sets the device rules of an existing cgroup. On a host whose v1 hierarchies lack the devices controller nothing could
    /// enforce them: an error.
    pub fn set_devices(&self, path: &CgroupPath, rules: &[DeviceRule]) -> Result<(), CgroupError> {
        let is_for_devices =
            |h: &&super::Hierarchy| h.version == CgroupVersion::V2 || h.controllers.contains("devices");
        let Some(hierarchy) = self.managed().find(is_for_devices) else {
            let root = self.hierarchies.first().map(|hierarchy| path.under(&hierarchy.root));
            return Err(CgroupError::MissingController {
                controller: "devices".into(),
                path: root.unwrap_or_default(),
            });
        };
        let dir = path.under(&hierarchy.root);
        match hierarchy.version {
            CgroupVersion::V1 => write_v1(&dir, rules),
            CgroupVersion::V2 => std::fs::File::open(&dir)
                .and_then(|open| attach_v2(open, rules))
                .map_err(|source| CgroupError::Devices { path: dir, source }),
        }
    }
}

/// Writes the rules to the files of a cgroup of the v1 devices hierarchy, in order. A first rule about everything replaces what was
/// there.
fn write_v1(cgroup: &Path, rules: &[DeviceRule]) -> Result<(), CgroupError> {
    for rule in rules {
        let path = cgroup.join(if rule.allow { "devices.allow" } else { "devices.deny" });
        for value in rule.texts() {
            std::fs::write(&path, &value).map_err(|source| CgroupError::Write { path: path.clone(), value, source })?;
        }
    }
    Ok(())
}

/// Enforces the rules in a v2 cgroup, given by an open directory. Earlier programs are replaced: they are detached after the new
/// one is in effect, so that at no time less is refused than by one of the two.
fn attach_v2(cgroup: impl AsFd, rules: &[DeviceRule]) -> io::Result<()> {
    let cgroup = cgroup.as_fd();
    let earlier = program::attached(cgroup)?;
    program::attach(cgroup, &program::load(&program::compile(rules))?)?;
    earlier.into_iter().try_for_each(|id| program::detach(cgroup, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;
    use std::process::Command;

    fn only_null() -> [DeviceRule; 2] {
        let null =
            DeviceRule { kind: DeviceKind::Char, major: Some(1), minor: Some(3), ..DeviceRule::everything(true) };
        [DeviceRule::everything(false), DeviceRule { mknod: false, ..null }]
    }

    /// In the cgroup: /dev/null can be written, /dev/zero cannot be read.
    fn check(cgroup: &Path, apply: impl FnOnce(&Path)) {
        fs::create_dir(cgroup).unwrap();
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| apply(cgroup)));
        let script = "echo $$ > \"$0\"/cgroup.procs && echo x > /dev/null && ! head -c 1 /dev/zero 2>/dev/null";
        let ran = Command::new("sh").args(["-c", script]).arg(cgroup).output();
        fs::remove_dir(cgroup).unwrap();
        applied.unwrap();
        let ran = ran.unwrap();
        assert!(ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
    }

    #[test]
    fn rules_are_written_in_the_form_of_v1() {
        let [all, null] = only_null();
        assert_eq!((all.texts(), null.texts()), (vec!["a".to_owned()], vec!["c 1:3 rw".to_owned()]));
        let making = DeviceRule { read: false, write: false, ..DeviceRule::everything(true) };
        assert_eq!(making.texts(), ["c *:* m", "b *:* m"]);
        assert!(DeviceRule { mknod: false, ..making }.texts().is_empty());
    }

    #[test]
    fn rules_are_enforced_in_v1_and_replaced() {
        let tree = CgroupTree::detect().unwrap();
        if tree.version() == CgroupVersion::V2 {
            return; // The same for v2 is in tests/cgroup_v2.rs.
        }
        let path = CgroupPath::root().join(&format!("podwright-devices-{}", std::process::id())).unwrap();
        let root = tree.managed().find(|h| h.controllers.contains("devices")).unwrap().root.clone();
        check(&path.under(&root), |_| {
            tree.set_devices(&path, &[DeviceRule::everything(true)]).unwrap();
            tree.set_devices(&path, &only_null()).unwrap();
        });
    }

    #[test]
    fn a_program_is_attached_replaced_and_enforced() {
        let mounts = crate::mountinfo::read().unwrap();
        let tree = mounts.iter().find(|mount| mount.fstype == "cgroup2").expect("a v2 tree, alone or beside v1");
        check(&tree.point.join(format!("podwright-devices-{}", std::process::id())), |cgroup| {
            let open = fs::File::open(cgroup).unwrap();
            attach_v2(&open, &[DeviceRule::everything(true)]).unwrap();
            attach_v2(&open, &only_null()).unwrap();
            assert_eq!(program::attached(open.as_fd()).unwrap().len(), 1, "the first program was replaced");
        });
    }

    #[test]
    fn a_host_without_the_controller_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let tree = CgroupTree::plain_v1(dir.path(), &["cpu"]).unwrap();
        let refused = tree.set_devices(&CgroupPath::root(), &only_null()).unwrap_err();
        assert!(matches!(refused, CgroupError::MissingController { controller, .. } if controller == "devices"));
    }
}
