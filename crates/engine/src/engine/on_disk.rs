//! What containers keep on disk, for garbage collection and usage.

use podwright_image::GcRoots;
use podwright_linux::beneath::TreeUsage;

use crate::context::EngineContext;
use crate::images::{ContainersOnDisk, ImageUser};
use crate::machine::SandboxId;
use crate::sweep;

impl ContainersOnDisk for EngineContext {
    fn gc_roots(&self) -> GcRoots {
        // Which layers these use is not known.
        let has_unrecorded = !sweep::unrecorded_pods(self).is_empty();
        let objects = self.objects();
        let records = || objects.containers.values().map(|entry| &entry.record);
        let mut roots = GcRoots {
            container_layers: records().flat_map(|record| &record.chain).filter_map(|id| id.parse().ok()).collect(),
            images_in_use: records().filter_map(|record| record.image_id.parse().ok()).collect(),
            ..GcRoots::default()
        };
        self.unreadable.keep_layers(&mut roots);
        roots.keep_all_layers |= has_unrecorded;
        roots
    }

    fn writable_usage(&self) -> TreeUsage {
        self.stats.writable_usage()
    }

    fn image_users(&self) -> Vec<ImageUser> {
        let objects = self.objects();
        let users = objects.containers.values().map(|entry| {
            let sandbox = objects.sandboxes.get(&SandboxId(entry.record.sandbox_id.clone()));
            ImageUser::new(&entry.record, sandbox.map(|sandbox| &sandbox.record))
        });
        users.collect()
    }
}
