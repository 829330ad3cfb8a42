//! Step 6: the user of a process, from the files of the container's root.
//!
//! The rules are containerd's (`oci.WithUser`, `WithAdditionalGIDs`): a number need not be in the files, a name must be. What looks like
//! a number is never a name: the image writes the files, and must not map the user that a pod requests to another one.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::{LaunchFailure, LaunchStep};
use crate::plan::{GroupsPolicy, IdMapping, ResolvedUser, UserPlan};

/// Resolves a user in the files of this root.
pub(super) fn resolve(root: &OwnedFd, plan: &UserPlan) -> Result<ResolvedUser, LaunchFailure> {
    let passwd = read_beneath(root, "etc/passwd")?;
    let group = read_beneath(root, "etc/group")?;
    resolve_in(&passwd, &group, plan)
}

fn resolve_in(passwd: &str, group: &str, plan: &UserPlan) -> Result<ResolvedUser, LaunchFailure> {
    let (user, group_name) = match plan.user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (plan.user.as_str(), None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number = number(user).map_err(|InvalidId| invalid(plan))?;
    let entry = accounts(passwd).find(|account| number.map_or(account.name == user, |uid| account.id == uid));
    let (uid, mut gid) = match (&entry, number) {
        (Some(account), _) => (account.id, account.gid),
        (None, Some(uid)) => (uid, 0),
        (None, None) => return Err(missing("user", user, "/etc/passwd")),
    };
    if let Some(name) = group_name {
        gid = match self::number(name).map_err(|InvalidId| invalid(plan))? {
            Some(gid) => gid,
            None => {
                let found = groups(group).find(|(known, ..)| *known == name);
                found.map(|(_, id, _)| id).ok_or_else(|| missing("group", name, "/etc/group"))?
            }
        };
    }
    if uid == u32::MAX || gid == u32::MAX {
        return Err(invalid(plan));
    }
    let mut all = vec![gid];
    let merges = plan.groups_policy() == GroupsPolicy::Merge;
    if let (true, Some(account)) = (merges, &entry) {
        let member = |members: &str| members.split(',').any(|member| member == account.name);
        all.extend(groups(group).filter(|(_, _, members)| member(members)).map(|(_, id, _)| id));
    }
    all.extend(&plan.supplemental_groups);
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|id| *id != u32::MAX && seen.insert(*id));
    // As the kernel has them, and as containerd reports them.
    all.sort_unstable();
    if all.len() > GROUPS_MAX {
        return Err(LaunchFailure::new(
            LaunchStep::User,
            format!("user {:?}: more than {GROUPS_MAX} groups", plan.user),
        ));
    }
    let home = entry.map(|account| account.home.to_owned()).filter(|home| home.starts_with('/'));
    if home.as_ref().is_some_and(|home| home.len() > HOME_BYTES_MAX) {
        let text = format!("user {:?}: its home directory has more than {HOME_BYTES_MAX} bytes", plan.user);
        return Err(LaunchFailure::new(LaunchStep::User, text));
    }
    Ok(ResolvedUser { uid, gid, groups: all, home: home.unwrap_or_else(|| "/".to_owned()) })
}

/// The id on the host. `None`: it is not mapped.
pub(super) fn host_id(mappings: &[IdMapping], id: u32) -> Option<u32> {
    if mappings.is_empty() {
        return Some(id);
    }
    let map = mappings.iter().find(|map| id.checked_sub(map.container).is_some_and(|offset| offset < map.size))?;
    map.host.checked_add(id - map.container)
}

/// Lets the user open its own standard streams, e.g. `/dev/stdout`. Devices that others use too stay as they are.
pub(super) fn own_streams(streams: &[&OwnedFd], uid: u32) {
    for stream in streams {
        let Ok(stat) = rustix::fs::fstat(stream) else { continue };
        let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && stat.st_rdev == rustix::fs::makedev(1, 3);
        if !is_null && stat.st_uid != uid {
            // Refused for descriptors on read-only or foreign file systems: the program can use the descriptor all the same.
            let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None);
        }
    }
}

/// A text file of the container, at most 1 MiB; a missing one is empty. What is no regular file is not even opened: the open of a FIFO
/// waits, and that of a device does what its driver wants, for other runtimes outside of the container's device cgroup.
fn read_beneath(root: impl AsFd, path: &str) -> Result<String, LaunchFailure> {
    let failed = |text: String| LaunchFailure::new(LaunchStep::User, format!("read /{path}: {text}"));
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = match rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(String::new()),
        Err(e) => return Err(LaunchFailure::io(LaunchStep::User, format!("read /{path}"), &e.into())),
    };
    let stat = rustix::fs::fstat(&found).map_err(|e| failed(e.to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed("not a regular file".to_owned()));
    }
    // The same file, whatever is at the path now.
    let file = std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let file = file.map_err(|e| LaunchFailure::io(LaunchStep::User, format!("read /{path}"), &e))?;
    let mut bytes = vec![];
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| failed(e.to_string()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(failed("larger than 1 MiB".to_owned()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A number that no user or group can have.
struct InvalidId;

/// `None`: a name. As `strconv.Atoi`, a number may have a sign.
fn number(text: &str) -> Result<Option<u32>, InvalidId> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let number = text.parse::<i64>().ok().and_then(|number| u32::try_from(number).ok());
    number.map(Some).ok_or(InvalidId)
}

fn invalid(plan: &UserPlan) -> LaunchFailure {
    LaunchFailure::new(LaunchStep::User, format!("user {:?}: the id is not valid", plan.user))
}

fn missing(what: &str, name: &str, file: &str) -> LaunchFailure {
    LaunchFailure::new(LaunchStep::User, format!("{what} {name:?}: not in {file} of the container"))
}

struct Account<'a> {
    name: &'a str,
    id: u32,
    gid: u32,
    home: &'a str,
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let id = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default();
        Some(Account { name, id, gid, home })
    })
}

/// Name, id, members.
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let id = fields.nth(1)?.parse().ok()?;
        Some((name, id, fields.next().unwrap_or_default()))
    })
}

const FILE_MAX: u64 = 1 << 20;
/// The kernel's `PATH_MAX`. A report with a longer one could be too large for a packet.
const HOME_BYTES_MAX: usize = 4096;
/// They must fit into one report; the kernel takes 65,536.
const GROUPS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001::/home/web:\nbroken\n5:x:7:8::/five:\n";
    const GROUP: &str = "root:x:0:\nweb:x:1001:\naudio:x:29:other,web\nwheel:x:10:webmaster\n";

    fn plan(user: &str, supplemental: &[u32], policy: GroupsPolicy) -> UserPlan {
        UserPlan { user: user.into(), supplemental_groups: supplemental.to_vec(), groups_policy: policy.into() }
    }

    #[test]
    fn names_and_numbers_are_resolved_as_containerd_does() {
        let cases: [(&str, u32, u32, &[u32], &str); 7] = [
            ("", 0, 0, &[0, 50], "/root"),
            ("web", 1000, 1001, &[29, 50, 1001], "/home/web"),
            ("1000", 1000, 1001, &[29, 50, 1001], "/home/web"),
            ("4000", 4000, 0, &[0, 50], "/"),
            ("web:audio", 1000, 29, &[29, 50], "/home/web"),
            ("4000:4001", 4000, 4001, &[50, 4001], "/"),
            // Not the account of that name.
            ("5", 5, 0, &[0, 50], "/"),
        ];
        for (user, uid, gid, groups, home) in cases {
            let found = resolve_in(PASSWD, GROUP, &plan(user, &[50], GroupsPolicy::Merge)).unwrap();
            assert_eq!((found.uid, found.gid, &*found.groups, &*found.home), (uid, gid, groups, home), "{user:?}");
        }
    }

    #[test]
    fn a_number_is_never_a_name_of_the_image() {
        let (passwd, group) = ("1000:x:0:0::/root:/bin/sh\nme:x:1000:7::/me:\n-1:x:0:0::/:\n", "2000:x:0:1000\n");
        let merge = |user: &str| resolve_in(passwd, group, &plan(user, &[], GroupsPolicy::Merge));
        let found = merge("1000:2000").unwrap();
        assert_eq!((found.uid, found.gid, &*found.groups, &*found.home), (1000, 2000, &[2000][..], "/me"));
        assert_eq!(merge("+1000").unwrap().uid, 1000);
        for user in ["-1", "4294967296", "99999999999999999999", "0:-1", "0:4294967295"] {
            assert_eq!(merge(user).unwrap_err().text, format!("user {user:?}: the id is not valid"));
        }
    }

    #[test]
    fn a_strict_policy_takes_no_group_of_the_image() {
        let found = resolve_in(PASSWD, GROUP, &plan("web", &[50], GroupsPolicy::Strict)).unwrap();
        assert_eq!(found.groups, [50, 1001]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_names_the_file() {
        let failure = resolve_in(PASSWD, GROUP, &plan("nobody", &[], GroupsPolicy::Merge)).unwrap_err();
        assert_eq!(failure.text, "user \"nobody\": not in /etc/passwd of the container");
        assert!(resolve_in(PASSWD, GROUP, &plan("web:staff", &[], GroupsPolicy::Merge)).is_err());
        assert!(resolve_in(PASSWD, GROUP, &plan("4294967295", &[], GroupsPolicy::Merge)).is_err());
    }

    #[test]
    fn a_home_that_no_report_can_carry_is_refused() {
        let passwd = |bytes: usize| format!("web:x:1000:1000::/{}:\nother:x:7:7::/:\n", "h".repeat(bytes - 1));
        let find = |bytes: usize, user: &str| resolve_in(&passwd(bytes), "", &plan(user, &[], GroupsPolicy::Merge));
        assert_eq!(find(4096, "web").unwrap().home.len(), 4096);
        let failure = find(4097, "web").unwrap_err();
        assert_eq!(failure.text, "user \"web\": its home directory has more than 4096 bytes");
        assert_eq!(find(70_000, "other").unwrap().home, "/", "of another user");
    }

    #[test]
    fn ids_are_mapped_to_the_host() {
        let maps = [IdMapping { container: 0, host: 100_000, size: 10 }];
        assert_eq!(host_id(&maps, 3), Some(100_003));
        assert_eq!(host_id(&maps, 10), None);
        assert_eq!(host_id(&[], 10), Some(10));
    }

    /// The open of a socket, and of a device without a driver, is an error of its own.
    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let path = dir.path().join("etc/passwd");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let root: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let failure = resolve(&root, &plan("", &[], GroupsPolicy::Merge)).unwrap_err();
        assert_eq!(failure.text, "read /etc/passwd: not a regular file");
    }

    #[test]
    fn a_fifo_as_passwd_is_refused_and_does_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let fifo = dir.path().join("etc/passwd");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let root: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let failure = resolve(&root, &plan("", &[], GroupsPolicy::Merge)).unwrap_err();
        assert_eq!(failure.text, "read /etc/passwd: not a regular file");
        std::fs::remove_file(&fifo).unwrap();
        // A link out of the root ends inside it.
        std::os::unix::fs::symlink("/proc/self/environ", &fifo).unwrap();
        assert_eq!(resolve(&root, &plan("", &[], GroupsPolicy::Merge)).unwrap().home, "/");
        std::fs::remove_file(&fifo).unwrap();
        std::fs::File::create(&fifo).unwrap().set_len(1 << 30).unwrap();
        let failure = resolve(&root, &plan("", &[], GroupsPolicy::Merge)).unwrap_err();
        assert_eq!(failure.text, "read /etc/passwd: larger than 1 MiB");
    }
}
