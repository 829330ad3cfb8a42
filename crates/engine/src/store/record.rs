//! What a record holds, and its form on disk: one byte of version, four of CRC32, a protobuf message. Fields are only added.

use podwright_cri::v1;
use podwright_shim::plan::ResolvedUser;
use podwright_shim::protocol::DescriptorKind;
use prost::Message;

use crate::machine::{ContainerRecordState, ExitReason, ExitRecord, SandboxRecordState, SandboxResources};

/// A sandbox in its record.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRecord {
    /// As requested.
    pub config: v1::PodSandboxConfig,
    /// The RuntimeClass; empty: the builtin handler.
    pub handler: String,
    /// Nanoseconds since 1970; strictly increasing over all objects.
    pub created_at_ns: i64,
    /// The addresses of the pod, the first one as `network.ip`. Empty for the host network.
    pub addresses: Vec<String>,
    /// Of the pod's own namespaces; empty until they are made.
    pub namespaces: Vec<RecordedNamespace>,
    /// The state, and what may exist outside the record.
    pub state: SandboxRecordState,
}

/// The identity of a namespace, as long as it exists.
#[derive(Clone, PartialEq, Message)]
pub struct RecordedNamespace {
    /// A kind of namespace.
    #[prost(enumeration = "DescriptorKind", tag = "1")]
    pub kind: i32,
    /// In nsfs.
    #[prost(uint64, tag = "2")]
    pub inode: u64,
}

/// A container in its record.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerRecord {
    /// As requested.
    pub config: v1::ContainerConfig,
    /// The sandbox.
    pub sandbox_id: String,
    /// The id of the image's configuration.
    pub image_id: String,
    /// The directories of the layers, the topmost first.
    pub layers: Vec<String>,
    /// The chain ids of the layers, the lowest first: garbage collection keeps them. Those of image volumes are among them.
    pub chain: Vec<String>,
    /// Nanoseconds since 1970; strictly increasing over all objects.
    pub created_at_ns: i64,
    /// Nanoseconds since 1970; 0: not started.
    pub started_at_ns: i64,
    /// The stop signal, from the request or the image.
    pub stop_signal: i32,
    /// A tag of the image; else the name of the request.
    pub image_name: String,
    /// The first digest of the image in a repository; else its id.
    pub image_ref: String,
    /// The user of the init as the launcher resolved it; `None`: not started.
    pub user: Option<ResolvedUser>,
    /// The state.
    pub state: ContainerRecordState,
}

/// Why a record can not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Fewer bytes than a header, or more than a record has.
    #[error("invalid record length {0}")]
    Length(usize),
    /// Written by a newer version.
    #[error("record format {0} is newer than this version supports")]
    NewerVersion(u8),
    /// No format of ours.
    #[error("unknown record format {0}")]
    Version(u8),
    /// The content is not what was written.
    #[error("the checksum is wrong")]
    Checksum,
    /// The checksum is right and the message is not.
    #[error("malformed: {0}")]
    Malformed(String),
}

/// A record that is stored as one message.
pub(super) trait StoredRecord: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> Result<Self, RecordError>;
}

impl StoredRecord for SandboxRecord {
    fn encode(&self) -> Vec<u8> {
        let (state, held) = match self.state {
            SandboxRecordState::Creating(held) => (StateNumber::Creating, held),
            SandboxRecordState::Ready(held) => (StateNumber::Ready, held),
            SandboxRecordState::NotReady(held) => (StateNumber::NotReady, held),
        };
        frame(&SandboxMessage {
            config: Some(self.config.clone()),
            handler: self.handler.clone(),
            created_at_ns: self.created_at_ns,
            addresses: self.addresses.clone(),
            own_namespaces: self.namespaces.clone(),
            state: state.into(),
            shim: held.shim,
            namespaces: held.namespaces,
            network: held.network,
            shm: held.shm,
            pause: held.pause,
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let m: SandboxMessage = unframe(bytes)?;
        let held =
            SandboxResources { shim: m.shim, namespaces: m.namespaces, network: m.network, shm: m.shm, pause: m.pause };
        let state = match m.state() {
            StateNumber::Creating => SandboxRecordState::Creating(held),
            StateNumber::Ready => SandboxRecordState::Ready(held),
            StateNumber::NotReady => SandboxRecordState::NotReady(held),
            other => return Err(RecordError::Malformed(format!("state {other:?} of a sandbox"))),
        };
        let config = m.config.ok_or_else(|| RecordError::Malformed("no configuration".into()))?;
        let SandboxMessage { handler, created_at_ns, addresses, own_namespaces: namespaces, .. } = m;
        Ok(Self { config, handler, created_at_ns, addresses, namespaces, state })
    }
}

impl StoredRecord for ContainerRecord {
    fn encode(&self) -> Vec<u8> {
        let (state, exit) = match &self.state {
            ContainerRecordState::Created => (StateNumber::Created, None),
            ContainerRecordState::Starting => (StateNumber::Starting, None),
            ContainerRecordState::Running => (StateNumber::Running, None),
            ContainerRecordState::Exited(exit) => (StateNumber::Exited, Some(exit)),
        };
        frame(&ContainerMessage {
            config: Some(self.config.clone()),
            sandbox_id: self.sandbox_id.clone(),
            image_id: self.image_id.clone(),
            layers: self.layers.clone(),
            chain: self.chain.clone(),
            created_at_ns: self.created_at_ns,
            started_at_ns: self.started_at_ns,
            stop_signal: self.stop_signal,
            image_name: self.image_name.clone(),
            image_ref: self.image_ref.clone(),
            user: self.user.clone(),
            state: state.into(),
            exit: exit.map(|exit| ExitMessage {
                code: exit.code,
                reason: ReasonNumber::from(exit.reason).into(),
                message: exit.message.clone(),
                finished_at_ns: exit.finished_at_ns,
            }),
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let m: ContainerMessage = unframe(bytes)?;
        let state = match (m.state(), &m.exit) {
            (StateNumber::Created, _) => ContainerRecordState::Created,
            (StateNumber::Starting, _) => ContainerRecordState::Starting,
            (StateNumber::Running, _) => ContainerRecordState::Running,
            (StateNumber::Exited, Some(exit)) => ContainerRecordState::Exited(ExitRecord {
                code: exit.code,
                reason: exit.reason().into(),
                message: exit.message.clone(),
                finished_at_ns: exit.finished_at_ns,
            }),
            (other, _) => return Err(RecordError::Malformed(format!("state {other:?} of a container"))),
        };
        let config = m.config.ok_or_else(|| RecordError::Malformed("no configuration".into()))?;
        Ok(Self {
            config,
            sandbox_id: m.sandbox_id,
            image_id: m.image_id,
            layers: m.layers,
            chain: m.chain,
            created_at_ns: m.created_at_ns,
            started_at_ns: m.started_at_ns,
            stop_signal: m.stop_signal,
            image_name: m.image_name,
            image_ref: m.image_ref,
            user: m.user,
            state,
        })
    }
}

fn frame(message: &impl Message) -> Vec<u8> {
    let payload = message.encode_to_vec();
    let mut bytes = Vec::with_capacity(payload.len() + HEADER);
    bytes.push(VERSION);
    bytes.extend(crc32fast::hash(&payload).to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn unframe<M: Message + Default>(bytes: &[u8]) -> Result<M, RecordError> {
    let length = RecordError::Length(bytes.len());
    let Some((header, payload)) = bytes.split_at_checked(HEADER) else { return Err(length) };
    let [version, crc @ ..] = header else { return Err(length) };
    match *version {
        VERSION => {}
        // A file of zeros is what a power loss leaves.
        0 => return Err(RecordError::Version(0)),
        newer => return Err(RecordError::NewerVersion(newer)),
    }
    if crc != crc32fast::hash(payload).to_le_bytes() {
        return Err(RecordError::Checksum);
    }
    M::decode(payload).map_err(|error| RecordError::Malformed(error.to_string()))
}

/// The version of the form, not of the program: a new field does not change it.
const VERSION: u8 = 1;
const HEADER: usize = 5;

#[derive(Clone, PartialEq, Message)]
struct SandboxMessage {
    #[prost(message, optional, tag = "1")]
    config: Option<v1::PodSandboxConfig>,
    #[prost(string, tag = "2")]
    handler: String,
    #[prost(int64, tag = "3")]
    created_at_ns: i64,
    #[prost(string, repeated, tag = "4")]
    addresses: Vec<String>,
    #[prost(enumeration = "StateNumber", tag = "5")]
    state: i32,
    #[prost(bool, tag = "6")]
    shim: bool,
    #[prost(bool, tag = "7")]
    namespaces: bool,
    #[prost(bool, tag = "8")]
    network: bool,
    #[prost(bool, tag = "9")]
    shm: bool,
    #[prost(bool, tag = "10")]
    pause: bool,
    #[prost(message, repeated, tag = "11")]
    own_namespaces: Vec<RecordedNamespace>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMessage {
    #[prost(message, optional, tag = "1")]
    config: Option<v1::ContainerConfig>,
    #[prost(string, tag = "2")]
    sandbox_id: String,
    #[prost(string, tag = "3")]
    image_id: String,
    #[prost(string, repeated, tag = "4")]
    layers: Vec<String>,
    #[prost(int64, tag = "5")]
    created_at_ns: i64,
    #[prost(int64, tag = "6")]
    started_at_ns: i64,
    #[prost(int32, tag = "7")]
    stop_signal: i32,
    #[prost(enumeration = "StateNumber", tag = "8")]
    state: i32,
    #[prost(message, optional, tag = "9")]
    exit: Option<ExitMessage>,
    #[prost(string, tag = "10")]
    image_name: String,
    #[prost(string, tag = "11")]
    image_ref: String,
    #[prost(message, optional, tag = "12")]
    user: Option<ResolvedUser>,
    #[prost(string, repeated, tag = "13")]
    chain: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ExitMessage {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(enumeration = "ReasonNumber", tag = "2")]
    reason: i32,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(int64, tag = "4")]
    finished_at_ns: i64,
}

/// 0 is no state: a message without one is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum StateNumber {
    None = 0,
    Creating = 1,
    Ready = 2,
    NotReady = 3,
    Created = 4,
    Starting = 5,
    Running = 6,
    Exited = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum ReasonNumber {
    Unknown = 0,
    Completed = 1,
    Error = 2,
    OomKilled = 3,
    StartError = 4,
}

impl From<ExitReason> for ReasonNumber {
    fn from(reason: ExitReason) -> Self {
        match reason {
            ExitReason::Completed => Self::Completed,
            ExitReason::Error => Self::Error,
            ExitReason::OomKilled => Self::OomKilled,
            ExitReason::StartError => Self::StartError,
            ExitReason::Unknown => Self::Unknown,
        }
    }
}

impl From<ReasonNumber> for ExitReason {
    fn from(number: ReasonNumber) -> Self {
        match number {
            ReasonNumber::Completed => Self::Completed,
            ReasonNumber::Error => Self::Error,
            ReasonNumber::OomKilled => Self::OomKilled,
            ReasonNumber::StartError => Self::StartError,
            ReasonNumber::Unknown => Self::Unknown,
        }
    }
}
