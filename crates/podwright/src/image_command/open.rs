//! Where the images are: behind the socket of an agent, or in a store that no agent uses.
//!
//! ```text
//!  --root-dir given?  no ──▶ an agent listens in --run-dir?  yes ──▶ ask the agent
//!         │                                                  no ──▶ open the store of the default directory
//!        yes ──▶ open that store; its agent holds the lock? ──▶ ask the agent
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_image::{ImageLimits, ImageStore, ImageStoreError, Platform, Puller, RegistryOptions};
use podwright_server::local::NodeImages;
use podwright_tasks::Pool;

use super::ImageCommandError;
use crate::cli::{ImageCommand, ImageFlags};
use crate::client::{AgentImages, Client};
use crate::store_images::{ContainerSource, StoreImages};

/// The images that the command works on.
pub(super) struct OpenImages {
    pub(super) images: Box<dyn NodeImages>,
    /// `None`: an agent has it.
    store: Option<Arc<ImageStore>>,
}

impl OpenImages {
    /// Waits until pulled layers survive a power loss. An agent does that later.
    pub(super) fn sync(&self) -> Result<(), ImageStoreError> {
        self.store.iter().try_for_each(|store| store.sync())
    }
}

pub(super) async fn open(flags: &ImageFlags) -> Result<OpenImages, ImageCommandError> {
    let agent = AgentImages::new(Client::new(&flags.run_dir));
    let Some(root) = &flags.root_dir else {
        return match agent.is_there().await.map_err(ImageCommandError::Agent)? {
            true => of_agent(agent, flags),
            false => of_store(Path::new(ROOT_DIR), flags),
        };
    };
    match of_store(root, flags) {
        Err(ImageCommandError::InUse { dir, pid, command }) => match agent.root_dir().await {
            Ok(used) if is_same(&used, root) => of_agent(agent, flags),
            _ => Err(ImageCommandError::InUse { dir, pid, command }),
        },
        opened => opened,
    }
}

fn of_agent(agent: AgentImages, flags: &ImageFlags) -> Result<OpenImages, ImageCommandError> {
    match hosts_dir(flags) {
        Some(_) => Err(ImageCommandError::HostsDir),
        None => Ok(OpenImages { images: Box::new(agent), store: None }),
    }
}

fn of_store(root: &Path, flags: &ImageFlags) -> Result<OpenImages, ImageCommandError> {
    let dir = root.join("engine/images");
    let store = ImageStore::open(&dir, ImageLimits::default(), Platform::host()).map_err(|error| match error {
        ImageStoreError::Locked { pid, .. } => ImageCommandError::InUse { dir, command: command_of(&pid), pid },
        error => ImageCommandError::Open(dir, Box::new(error)),
    })?;
    let options = RegistryOptions { config_dir: hosts_dir(flags).cloned(), ..RegistryOptions::default() };
    let puller = Puller::new(Arc::clone(&store), options, Pool::default())?;
    let containers = ContainerSource::Records(root.to_owned());
    let images = StoreImages::new(Arc::clone(&store), Arc::new(puller), containers);
    Ok(OpenImages { images: Box::new(images), store: Some(store) })
}

fn hosts_dir(flags: &ImageFlags) -> Option<&PathBuf> {
    match &flags.command {
        ImageCommand::Pull(flags) => flags.hosts_dir.as_ref(),
        _ => None,
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// The command line of a process; `None` if it has ended, or the pid is not known.
fn command_of(pid: &str) -> Option<String> {
    let pid: u32 = pid.parse().ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| crate::print::plain(&String::from_utf8_lossy(word))).collect();
    Some(words.join(" ").chars().take(COMMAND_SHOWN).collect()).filter(|command: &String| !command.is_empty())
}

/// The root directory of an agent that has no --root-dir.
const ROOT_DIR: &str = "/var/lib/podwright";
/// Characters of a command line.
const COMMAND_SHOWN: usize = 300;
