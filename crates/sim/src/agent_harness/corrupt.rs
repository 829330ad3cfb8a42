//! Corrupt answers, for every type of answer.

use std::collections::BTreeMap;

use podwright_cri::labels::RESTART_COUNT;
use podwright_cri::{CriError, v1};

use super::faults::Corruption;
use super::state::CriResult;

/// An answer that can be made corrupt.
pub(super) trait Corrupt: Sized {
    fn out_of_range(&mut self);
    fn missing_fields(&mut self);
    fn oversized(&mut self);

    fn corrupt(mut self, kind: Corruption, call: &'static str) -> CriResult<Self> {
        match kind {
            Corruption::Malformed => return Err(CriError::malformed(call, "a required field is missing")),
            Corruption::MissingFields => self.missing_fields(),
            Corruption::OutOfRange => self.out_of_range(),
            Corruption::Oversized => self.oversized(),
        }
        Ok(self)
    }
}

fn text() -> String {
    "💥\u{0}\u{202e}".repeat(20_000)
}

impl Corrupt for () {
    fn out_of_range(&mut self) {}
    fn missing_fields(&mut self) {}
    fn oversized(&mut self) {}
}

impl Corrupt for String {
    fn out_of_range(&mut self) {
        *self = "../../\n\u{0}".into();
    }
    fn missing_fields(&mut self) {
        self.clear();
    }
    fn oversized(&mut self) {
        *self = text();
    }
}

impl Corrupt for Vec<v1::PodSandbox> {
    fn out_of_range(&mut self) {
        for s in self.iter_mut() {
            (s.state, s.created_at) = (77, i64::MIN);
            s.metadata.get_or_insert_default().attempt = u32::MAX;
        }
        // Every entry twice.
        self.extend_from_within(..);
    }
    fn missing_fields(&mut self) {
        for s in self.iter_mut() {
            (s.metadata, s.id) = (None, String::new());
        }
    }
    fn oversized(&mut self) {
        for s in self.iter_mut() {
            s.annotations.insert("huge".into(), text());
        }
        let unknown = v1::PodSandbox { id: text(), ..Default::default() };
        self.extend(std::iter::repeat_n(unknown, 20));
    }
}

impl Corrupt for Vec<v1::Container> {
    fn out_of_range(&mut self) {
        for c in self.iter_mut() {
            (c.state, c.created_at) = (-3, i64::MAX);
            c.pod_sandbox_id = "no such sandbox".into();
            c.metadata.get_or_insert_default().attempt = u32::MAX;
            c.annotations.insert(RESTART_COUNT.into(), u32::MAX.to_string());
        }
        self.extend_from_within(..);
    }
    fn missing_fields(&mut self) {
        for c in self.iter_mut() {
            (c.metadata, c.id) = (None, String::new());
            c.annotations = BTreeMap::new();
        }
    }
    fn oversized(&mut self) {
        for c in self.iter_mut() {
            c.annotations.insert("huge".into(), text());
        }
        self.extend(std::iter::repeat_n(v1::Container { id: text(), ..Default::default() }, 20));
    }
}

impl Corrupt for v1::PodSandboxStatusResponse {
    fn out_of_range(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.state, status.created_at) = (i32::MAX, i64::MIN);
        status.network = Some(v1::PodSandboxNetworkStatus { ip: "999.1.1.1".into(), additional_ips: vec![] });
    }
    fn missing_fields(&mut self) {
        self.status = None;
    }
    fn oversized(&mut self) {
        self.status.get_or_insert_default().labels.insert("huge".into(), text());
        self.info.insert("info".into(), text());
    }
}

impl Corrupt for v1::ContainerStatusResponse {
    fn out_of_range(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.created_at, status.started_at, status.finished_at) = (i64::MAX, i64::MIN, -1);
        status.state = 99;
        status.exit_code = i32::MIN;
        status.metadata.get_or_insert_default().attempt = u32::MAX;
        status.annotations.insert(RESTART_COUNT.into(), u32::MAX.to_string());
    }
    fn missing_fields(&mut self) {
        self.status = None;
    }
    fn oversized(&mut self) {
        let status = self.status.get_or_insert_default();
        (status.message, status.reason, status.image_ref) = (text(), text(), text());
        status.log_path = text();
    }
}

impl Corrupt for v1::VersionResponse {
    fn out_of_range(&mut self) {
        self.runtime_name = "\n:// ".into();
    }
    fn missing_fields(&mut self) {
        self.runtime_name.clear();
    }
    fn oversized(&mut self) {
        self.runtime_name = text();
    }
}

impl Corrupt for v1::StatusResponse {
    fn out_of_range(&mut self) {
        self.status.get_or_insert_default().conditions.reverse();
    }
    fn missing_fields(&mut self) {
        self.status = None;
    }
    fn oversized(&mut self) {
        self.info.insert("huge".into(), text());
    }
}

impl Corrupt for v1::ImageStatusResponse {
    fn out_of_range(&mut self) {
        self.image.get_or_insert_default().uid = Some(v1::Int64Value { value: -1 });
    }
    fn missing_fields(&mut self) {
        self.image.get_or_insert_default().id.clear();
    }
    fn oversized(&mut self) {
        self.image.get_or_insert_default().id = text();
    }
}

impl Corrupt for v1::ExecSyncResponse {
    fn out_of_range(&mut self) {
        self.exit_code = i32::MIN;
    }
    fn missing_fields(&mut self) {}
    fn oversized(&mut self) {
        self.stdout = text().into();
    }
}
