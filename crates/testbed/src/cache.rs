//! The cache of programs, filled by `hack/debs` and `hack/peers`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The tool cache, outside of every checkout.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    peers: PathBuf,
}

impl Cache {
    /// The cache of this user: `PODWRIGHT_CACHE` and `PODWRIGHT_PEERS`, else `~/.cache/podwright`.
    pub fn find() -> Self {
        let home = PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
        let root = env::var_os("PODWRIGHT_CACHE").map_or_else(|| home.join(".cache/podwright"), PathBuf::from);
        let peers = env::var_os("PODWRIGHT_PEERS").map_or_else(|| root.join("peers"), PathBuf::from);
        Self { root, peers }
    }

    /// A Debian program, by the name it is called with.
    pub fn debian(&self, name: &str) -> Result<PathBuf> {
        present(self.debian_exec().join(name), "make debs")
    }

    /// A Go peer, by the name it is called with.
    pub fn peer(&self, name: &str) -> Result<PathBuf> {
        present(self.peers_bin().join(name), "make peers")
    }

    /// The CNI plugins.
    pub fn cni_plugins(&self) -> Result<PathBuf> {
        present(self.root.join("debian/usr/lib/cni"), "make debs")
    }

    /// A directory for files that are built once, created if needed.
    pub fn kept(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// A `PATH` with the cached programs before the host's; `with_peers` puts the Go peers first.
    pub(crate) fn search_path(&self, with_peers: bool) -> OsString {
        let mut dirs = if with_peers { vec![self.peers_bin()] } else { Vec::new() };
        dirs.push(self.debian_exec());
        dirs.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        // System programs that a user's PATH may lack (mount helpers, ip).
        dirs.extend(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from));
        env::join_paths(dirs).expect("cache paths have no colon")
    }

    fn debian_exec(&self) -> PathBuf {
        self.root.join("debian/exec")
    }

    fn peers_bin(&self) -> PathBuf {
        self.peers.join("bin")
    }
}

fn present(path: PathBuf, remedy: &str) -> Result<PathBuf> {
    ensure!(Path::new(&path).exists(), "{} is missing: run `{remedy}`", path.display());
    Ok(path)
}
