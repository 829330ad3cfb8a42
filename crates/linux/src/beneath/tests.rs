use super::*;
use crate::mount;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// A volume in a directory with a sibling outside of it, so that a failing test changes nothing else.
fn volume() -> (tempfile::TempDir, std::path::PathBuf, ConfinedDir) {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/precious"), "x").unwrap();
    let root = ConfinedDir::open(&volume).unwrap();
    (dir, volume, root)
}

fn errno(r: io::Result<OwnedFd>) -> Option<i32> {
    r.unwrap_err().raw_os_error()
}

#[test]
fn symlinks_that_lead_out_are_refused() {
    let (dir, volume, root) = volume();
    symlink(dir.path().join("outside"), volume.join("absolute")).unwrap();
    symlink("../outside", volume.join("relative")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    for path in ["absolute", "relative", "relative/precious", "magic", "../outside", "/etc"] {
        assert_eq!(errno(root.open_beneath(Path::new(path), OFlags::PATH)), Some(18), "{path}");
    }
}

#[test]
fn symlinks_that_stay_inside_are_followed() {
    let (_dir, volume, root) = volume();
    fs::create_dir_all(volume.join("a/b")).unwrap();
    symlink("../a/b", volume.join("a/link")).unwrap();
    let fd = root.open_beneath(Path::new("a/link"), DIR).unwrap();
    assert_eq!(rustix::fs::fstat(fd).unwrap().st_ino, fs::metadata(volume.join("a/b")).unwrap().ino());
}

#[test]
fn missing_directories_are_created_with_the_mode() {
    let (_dir, volume, root) = volume();
    root.make_dirs(Path::new("a/./b/c"), 0o2777).unwrap();
    root.make_dirs(Path::new("a/b"), 0o700).unwrap();
    for path in ["a", "a/b", "a/b/c"] {
        assert_eq!(fs::metadata(volume.join(path)).unwrap().permissions().mode() & 0o7777, 0o2777, "{path}");
    }
}

#[test]
fn nothing_is_created_outside() {
    let (dir, volume, root) = volume();
    symlink("../outside", volume.join("out")).unwrap();
    symlink("../outside/new", volume.join("dangling")).unwrap();
    symlink("nowhere", volume.join("dangling-inside")).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    for path in ["out/x", "dangling", "dangling/x", "dangling-inside/x", "../outside/x", "/x", "file/x"] {
        assert!(root.make_dirs(Path::new(path), 0o755).is_err(), "{path}");
    }
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1);
}

#[test]
fn a_tree_is_removed_and_its_links_are_not_followed() {
    let (dir, volume, _root) = volume();
    fs::create_dir_all(volume.join("a/b")).unwrap();
    fs::write(volume.join("a/b/file"), "x").unwrap();
    symlink("../../outside", volume.join("a/link")).unwrap();
    symlink(dir.path().join("outside/precious"), volume.join("link")).unwrap();
    remove_path(&volume).unwrap();
    assert!(!volume.exists());
    assert!(dir.path().join("outside/precious").exists());
    remove_path(&volume).unwrap();
}

#[test]
fn a_symlink_in_place_of_the_tree_is_removed_itself() {
    let (dir, volume, _root) = volume();
    symlink("../outside", volume.join("link")).unwrap();
    remove_path(&volume.join("link")).unwrap();
    assert!(dir.path().join("outside/precious").exists());
    assert!(fs::symlink_metadata(volume.join("link")).is_err());
}

#[test]
fn a_mount_is_not_entered_and_the_rest_is_removed() {
    let (_dir, volume, _root) = volume();
    let inside = volume.join("a/mounted");
    fs::create_dir_all(&inside).unwrap();
    fs::write(volume.join("other"), "x").unwrap();
    mount::tmpfs(&inside, &mount::Tmpfs { size: None, mode: 0o755 }).unwrap();
    fs::write(inside.join("precious"), "x").unwrap();
    let result = remove_path(&volume);
    let kept = inside.join("precious").exists();
    mount::unmount(&inside).unwrap();
    assert!(matches!(result, Err(RemoveError::Mounted(p)) if p == inside));
    assert!(kept);
    assert!(!volume.join("other").exists());
    remove_path(&volume).unwrap();
}

#[test]
fn a_file_that_is_a_mount_point_stays() {
    let (dir, volume, _root) = volume();
    let target = volume.join("file");
    fs::write(&target, "").unwrap();
    mount::bind(File::open(dir.path().join("outside/precious")).unwrap(), File::open(&target).unwrap()).unwrap();
    let result = remove_path(&volume);
    mount::unmount(&target).unwrap();
    assert!(matches!(result, Err(RemoveError::Mounted(p)) if p == target));
    assert!(dir.path().join("outside/precious").exists());
}

#[test]
fn a_very_deep_tree_exhausts_neither_stack_nor_descriptors() {
    let (_dir, volume, root) = volume();
    let mut here = root.open_beneath(Path::new("."), DIR).unwrap();
    for _ in 0..3000 {
        mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        here = resolve(here.as_fd(), Path::new("d"), DIR, ResolveFlags::BENEATH).unwrap();
    }
    drop(here);
    remove_path(&volume).unwrap();
    assert!(!volume.exists());
}

#[test]
fn creating_a_file_fails_if_the_name_exists() {
    let (dir, volume, root) = volume();
    root.create_file(Path::new("new"), 0o666).unwrap();
    assert_eq!(fs::metadata(volume.join("new")).unwrap().permissions().mode() & 0o7777, 0o666);
    symlink("../outside/made", volume.join("link")).unwrap();
    for path in ["new", "link", "../outside/made"] {
        assert!(root.create_file(Path::new(path), 0o666).is_err(), "{path}");
    }
    assert!(!dir.path().join("outside/made").exists());
}

#[test]
fn only_small_regular_files_are_read() {
    let (_dir, volume, root) = volume();
    fs::write(volume.join("file"), "12345").unwrap();
    symlink("../outside/precious", volume.join("link")).unwrap();
    rustix::fs::mknodat(&root, "pipe", rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert_eq!(root.read_file(Path::new("file"), 5).unwrap(), b"12345");
    assert!(root.read_file(Path::new("file"), 4).is_err());
    assert!(root.read_file(Path::new("link"), 5).is_err());
    assert!(root.read_file(Path::new("pipe"), 5).is_err());
}

#[test]
fn a_tree_whose_directories_are_swapped_with_links_is_removed_without_following_them() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (dir, volume, root) = volume();
    let precious = dir.path().join("outside/precious");
    let changed = || fs::metadata(dir.path().join("outside")).map(|m| (m.ctime(), m.ctime_nsec(), m.nlink())).unwrap();
    let before = changed();
    let (tree, link) = (volume.join("tree/dir"), volume.join("link"));
    let done = AtomicBool::new(false);
    let end = std::time::Instant::now() + std::time::Duration::from_millis(700);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // One of the two is missing most of the time.
                let _ = rustix::fs::renameat_with(CWD, &tree, CWD, &link, rustix::fs::RenameFlags::EXCHANGE);
            }
        });
        while std::time::Instant::now() < end && precious.exists() {
            let _ = fs::create_dir_all(tree.join("deep")).and_then(|()| symlink("../outside", &link));
            let _ = remove_tree(root.as_fd(), OsStr::new("tree"), &volume.join("tree"));
            let _ = remove_tree(root.as_fd(), OsStr::new("link"), &link);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_to_string(precious).unwrap(), "x");
    assert_eq!(changed(), before, "something outside was changed");
}
