//! Answers that make no sense, of every kind of answer.

use std::collections::BTreeMap;

use podwright_cri::labels::RESTART_COUNT;
use podwright_cri::{CriError, v1};

use super::faults::Garbage;
use super::state::Done;

/// An answer that can be spoiled.
pub(super) trait Spoil: Sized {
    fn absurd(&mut self);
    fn missing(&mut self);
    fn huge(&mut self);

    fn spoil(mut self, kind: Garbage, call: &'static str) -> Done<Self> {
        match kind {
            Garbage::Malformed => return Err(CriError::malformed(call, "the answer lacks what it must have")),
            Garbage::Missing => self.missing(),
            Garbage::Absurd => self.absurd(),
            Garbage::Huge => self.huge(),
        }
        Ok(self)
    }
}

fn text() -> String {
    "💥\u{0}\u{202e}".repeat(20_000)
}

impl Spoil for () {
    fn absurd(&mut self) {}
    fn missing(&mut self) {}
    fn huge(&mut self) {}
}

impl Spoil for String {
    fn absurd(&mut self) {
        *self = "../../\n\u{0}".into();
    }
    fn missing(&mut self) {
        self.clear();
    }
    fn huge(&mut self) {
        *self = text();
    }
}

impl Spoil for Vec<v1::PodSandbox> {
    fn absurd(&mut self) {
        for s in self.iter_mut() {
            (s.state, s.created_at) = (77, i64::MIN);
            s.metadata.get_or_insert_default().attempt = u32::MAX;
        }
        // The same one twice.
        self.extend_from_within(..);
    }
    fn missing(&mut self) {
        for s in self.iter_mut() {
            (s.metadata, s.id) = (None, String::new());
        }
    }
    fn huge(&mut self) {
        for s in self.iter_mut() {
            s.annotations.insert("huge".into(), text());
        }
        let stranger = v1::PodSandbox { id: text(), ..Default::default() };
        self.extend(std::iter::repeat_n(stranger, 20));
    }
}

impl Spoil for Vec<v1::Container> {
    fn absurd(&mut self) {
        for c in self.iter_mut() {
            (c.state, c.created_at) = (-3, i64::MAX);
            c.pod_sandbox_id = "no such sandbox".into();
            c.metadata.get_or_insert_default().attempt = u32::MAX;
            c.annotations.insert(RESTART_COUNT.into(), u32::MAX.to_string());
        }
        self.extend_from_within(..);
    }
    fn missing(&mut self) {
        for c in self.iter_mut() {
            (c.metadata, c.id) = (None, String::new());
            c.annotations = BTreeMap::new();
        }
    }
    fn huge(&mut self) {
        for c in self.iter_mut() {
            c.annotations.insert("huge".into(), text());
        }
        self.extend(std::iter::repeat_n(v1::Container { id: text(), ..Default::default() }, 20));
    }
}

impl Spoil for v1::PodSandboxStatusResponse {
    fn absurd(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.state, status.created_at) = (i32::MAX, i64::MIN);
        status.network = Some(v1::PodSandboxNetworkStatus { ip: "999.1.1.1".into(), additional_ips: vec![] });
    }
    fn missing(&mut self) {
        self.status = None;
    }
    fn huge(&mut self) {
        self.status.get_or_insert_default().labels.insert("huge".into(), text());
        self.info.insert("info".into(), text());
    }
}

impl Spoil for v1::ContainerStatusResponse {
    fn absurd(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.created_at, status.started_at, status.finished_at) = (i64::MAX, i64::MIN, -1);
        status.state = 99;
        status.exit_code = i32::MIN;
        status.metadata.get_or_insert_default().attempt = u32::MAX;
        status.annotations.insert(RESTART_COUNT.into(), u32::MAX.to_string());
    }
    fn missing(&mut self) {
        self.status = None;
    }
    fn huge(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.message, status.reason, status.image_ref) = (text(), text(), text());
        status.log_path = text();
    }
}

impl Spoil for v1::VersionResponse {
    fn absurd(&mut self) {
        self.runtime_name = "\n:// ".into();
    }
    fn missing(&mut self) {
        self.runtime_name.clear();
    }
    fn huge(&mut self) {
        self.runtime_name = text();
    }
}

impl Spoil for v1::StatusResponse {
    fn absurd(&mut self) {
        self.status.get_or_insert_default().conditions.reverse();
    }
    fn missing(&mut self) {
        self.status = None;
    }
    fn huge(&mut self) {
        self.info.insert("huge".into(), text());
    }
}

impl Spoil for v1::ImageStatusResponse {
    fn absurd(&mut self) {
        self.image.get_or_insert_default().uid = Some(v1::Int64Value { value: -1 });
    }
    fn missing(&mut self) {
        self.image.get_or_insert_default().id.clear();
    }
    fn huge(&mut self) {
        self.image.get_or_insert_default().id = text();
    }
}

impl Spoil for v1::ExecSyncResponse {
    fn absurd(&mut self) {
        self.exit_code = i32::MIN;
    }
    fn missing(&mut self) {}
    fn huge(&mut self) {
        self.stdout = text().into();
    }
}
