use super::*;
use crate::beneath::remove_path;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn counted(dir: &Path) -> TreeUsage {
    tree_usage(dir, u64::MAX, Instant::now() + Duration::from_secs(60)).unwrap()
}

fn of(dir: &Path, enough: u64) -> u64 {
    tree_usage(dir, enough, Instant::now() + Duration::from_secs(10)).unwrap().bytes
}

#[test]
fn counts_every_inode_once_and_follows_no_links() {
    let dir = tempfile::tempdir().unwrap();
    let (here, elsewhere) = (dir.path().join("here"), dir.path().join("elsewhere"));
    fs::create_dir_all(here.join("a/b")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("large"), vec![1; 1 << 20]).unwrap();
    let empty = of(&here, u64::MAX);
    symlink(&elsewhere, here.join("a/link")).unwrap();
    fs::write(here.join("a/b/file"), vec![1; 64 << 10]).unwrap();
    fs::hard_link(here.join("a/b/file"), here.join("again")).unwrap();
    let full = of(&here, u64::MAX);
    assert!((64 << 10..80 << 10).contains(&(full - empty)), "{empty} {full}");
    let hole = fs::File::create(here.join("hole")).unwrap();
    hole.set_len(1 << 30).unwrap();
    assert!(of(&here, u64::MAX) < full + (64 << 10), "a hole uses no blocks");
    // here, a, a/link, a/b, a/b/file (twice linked), hole
    let counted = counted(&here);
    assert_eq!((counted.inodes, counted.complete), (6, true));
    let late = tree_usage(&here, 0, Instant::now()).unwrap();
    assert!(!late.complete && late.inodes < counted.inodes, "{late:?}");
}

#[test]
fn stops_above_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..20 {
        fs::write(dir.path().join(n.to_string()), vec![1; 16 << 10]).unwrap();
    }
    let all = of(dir.path(), u64::MAX);
    let some = of(dir.path(), 32 << 10);
    assert!(some > 32 << 10 && some < all, "{some} of {all}");
    assert!(tree_usage(&dir.path().join("none"), 0, Instant::now()).is_err());
}

#[test]
fn an_incomplete_count_is_not_smaller_than_the_last_complete_one() {
    let usage = |bytes, inodes, complete| TreeUsage { bytes, inodes, complete };
    let last = Some(usage(10, 20, true));
    assert_eq!(usage(5, 30, false).or_last(last), usage(10, 30, false));
    assert_eq!(usage(5, 30, false).or_last(None), usage(5, 30, false));
    assert_eq!(usage(5, 5, true).or_last(last), usage(5, 5, true));
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Deep and wide: a new entry goes into one of the newest directories, or into any.
fn make_random_tree(top: &Path, seed: u64) -> usize {
    let mut random = Random(seed);
    let (mut dirs, mut files) = (vec![(top.to_owned(), 0)], Vec::<PathBuf>::new());
    for n in 0..600 {
        let newest = dirs.len() - 1 - random.below(dirs.len().min(2));
        let any = random.below(dirs.len());
        let (parent, depth) = dirs[if random.below(4) > 0 { newest } else { any }].clone();
        let path = parent.join(format!("{n}"));
        match random.below(8) {
            0..=3 => {
                fs::create_dir(&path).unwrap();
                dirs.push((path, depth + 1));
            }
            4 if !files.is_empty() => fs::hard_link(&files[random.below(files.len())], &path).unwrap(),
            5 => symlink("/", &path).unwrap(),
            _ => {
                fs::write(&path, vec![1; random.below(40_000)]).unwrap();
                files.push(path);
            }
        }
    }
    dirs.iter().map(|(_, depth)| *depth).max().unwrap()
}

/// As `du -x`.
fn reference(path: &Path, seen: &mut BTreeSet<(u64, u64)>) -> (u64, u64) {
    let about = fs::symlink_metadata(path).unwrap();
    if !seen.insert((about.dev(), about.ino())) {
        return (0, 0);
    }
    let mut sum = (about.blocks() * 512, 1);
    if about.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let (bytes, inodes) = reference(&entry.unwrap().path(), seen);
            sum = (sum.0 + bytes, sum.1 + inodes);
        }
    }
    sum
}

#[test]
fn random_trees_are_counted_as_du_does() {
    let mut deepest = 0;
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        deepest = deepest.max(make_random_tree(dir.path(), seed));
        let (bytes, inodes) = reference(dir.path(), &mut BTreeSet::new());
        assert_eq!(counted(dir.path()), TreeUsage { bytes, inodes, complete: true }, "seed {seed}");
    }
    assert!(deepest > 2 * OPEN_DIRS[0], "a tree of {deepest} levels does not show that directories are opened again");
}

/// A chain of directories `d`, by descriptor; returns the last.
fn make_chain(top: &Path, levels: usize) -> OwnedFd {
    let mut here = open_dir(CWD, top).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        here = open_dir(&here, Path::new("d")).unwrap();
    }
    here
}

/// Moves a directory when the walk is far below it.
struct Mover {
    from: PathBuf,
    to: PathBuf,
    entered: usize,
    names: Vec<String>,
    missed: Vec<WalkMiss>,
}

impl TreeVisitor for Mover {
    type End = ();

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> ControlFlow<(), bool> {
        self.names.push(name.to_str().unwrap().to_owned());
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        ControlFlow::Continue(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn entered(&mut self, _dir: &Stat) {
        self.entered += 1;
        if self.entered == 60 {
            fs::rename(&self.from, &self.to).unwrap();
        }
    }

    fn left(&mut self, _dir: BorrowedFd<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn missed(&mut self, miss: WalkMiss) -> ControlFlow<()> {
        self.missed.push(miss);
        ControlFlow::Continue(())
    }
}

#[test]
fn a_directory_that_is_moved_out_of_the_tree_does_not_lead_the_walk_out() {
    let dir = tempfile::tempdir().unwrap();
    let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
    fs::create_dir(&top).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    make_chain(&top, 80);
    let from = top.join(["d"; 10].join("/"));
    let mut mover = Mover { from, to: outside.join("moved"), entered: 0, names: vec![], missed: vec![] };
    assert!(walk(open_dir(CWD, &top).unwrap(), 16, &mut mover).is_continue());
    assert_eq!((mover.entered, mover.missed), (80, vec![WalkMiss::Moved]));
    assert!(mover.names.iter().all(|name| name == "d"), "{:?}", mover.names);
}

#[test]
fn directories_that_are_renamed_all_the_time_neither_end_the_walk_nor_lead_it_out() {
    let dir = tempfile::tempdir().unwrap();
    let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let large = fs::File::create(outside.join("large")).unwrap();
    rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, 64 << 20).unwrap();
    for name in ["a", "b"] {
        fs::create_dir_all(top.join(name)).unwrap();
        make_chain(&top.join(name), 60);
    }
    let quiet = counted(&top);
    assert_eq!((quiet.inodes, quiet.complete), (123, true));
    let done = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_millis(500);
    let mut usages = vec![];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let at = |name: &str, levels: usize| top.join(name).join(vec!["d"; levels].join("/"));
            while !done.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, at("a", 10), CWD, at("b", 20), exchange).unwrap();
                fs::rename(at("a", 5), outside.join("away")).unwrap();
                fs::rename(outside.join("away"), at("a", 5)).unwrap();
            }
        });
        while Instant::now() < end {
            usages.push(tree_usage(&top, u64::MAX, end + Duration::from_secs(10)));
        }
        done.store(true, Ordering::Relaxed);
    });
    remove_path(&top).unwrap();
    // A walk may meet a directory twice, but nothing that was never in the tree.
    let is_inside = |usage: &io::Result<TreeUsage>| usage.as_ref().is_ok_and(|usage| usage.bytes < 64 << 20);
    assert!(usages.iter().all(is_inside), "{usages:?}");
}
