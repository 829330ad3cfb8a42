//! Layers and images that tests make.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use tar::{EntryType, Header};

use crate::digest::Digest;
use crate::images::{ImageRecord, LayerRecord};
use crate::store::{ImageStore, NewImage};

/// A layer's tar, entry by entry. Names are written as they are, however hostile.
#[derive(Clone, Default)]
pub(crate) struct TestLayer(Vec<u8>);

impl TestLayer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        content: &[u8],
        edit: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_gnu();
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        edit(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes(), |_| {})
    }

    pub(crate) fn dir(self, name: &str, mode: u32, uid: u64) -> Self {
        self.entry(EntryType::Directory, name, "", b"", |header| {
            header.set_mode(mode);
            header.set_uid(uid);
        })
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"", |_| {})
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"", |_| {})
    }

    /// Extended attributes for the entry that follows.
    pub(crate) fn xattrs(self, attributes: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (name, value) in attributes {
            let rest = format!(" SCHILY.xattr.{name}={value}\n");
            let length = (1..).map(|digits| rest.len() + digits).find(|n| n.to_string().len() + rest.len() == *n);
            text += &format!("{}{rest}", length.unwrap());
        }
        self.entry(EntryType::XHeader, "pax", "", text.as_bytes(), |_| {})
    }

    /// The uncompressed tar.
    pub(crate) fn tar(&self) -> Vec<u8> {
        [self.0.clone(), vec![0; 1024]].concat()
    }
}

/// Stores an image of these layers under a name, unpacked.
pub(crate) fn add_image(store: &ImageStore, name: &str, layers: &[TestLayer]) -> ImageRecord {
    let mut records = vec![];
    for layer in layers {
        let tar = layer.tar();
        let blob = store.content().write(&tar).unwrap();
        records.push(LayerRecord { blob, size: tar.len() as u64, diff_id: blob });
        store.unpack(&records, &AtomicBool::new(false)).unwrap();
    }
    let diff_ids: Vec<Digest> = records.iter().map(|record| record.diff_id).collect();
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}, "name": name});
    let id = store.content().write(config.to_string().as_bytes()).unwrap();
    let manifest = store.content().write(format!("{{\"of\": \"{id}\"}}").as_bytes()).unwrap();
    let names = BTreeMap::from([(name.parse().unwrap(), manifest)]);
    store.add(NewImage { names, manifest, id, layers: records }).unwrap()
}

/// A file system that is mounted for one test. Needs root, as `make test` does.
pub(crate) struct Mounted(std::path::PathBuf);

impl Mounted {
    /// A disk with this many bytes.
    pub(crate) fn small_disk(path: &std::path::Path, bytes: u64) -> Self {
        Self::mount(path, "tmpfs", &format!("size={bytes},mode=0700"))
    }

    /// These directories, the topmost first, read-only.
    pub(crate) fn overlay(path: &std::path::Path, lowers: &str) -> Self {
        Self::mount(path, "overlay", &format!("lowerdir={lowers}"))
    }

    fn mount(path: &std::path::Path, kind: &str, options: &str) -> Self {
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(kind, path, kind, flags, Some(options.as_c_str())).expect("root may mount");
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).expect("it was mounted here");
    }
}
