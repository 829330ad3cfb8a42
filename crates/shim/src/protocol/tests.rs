use super::*;
use crate::plan::SetupPlan;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

fn stdio() -> StdioPlan {
    StdioPlan { terminal: true, stdin: true, stdin_once: true }
}

fn process() -> ProcessIdentity {
    ProcessIdentity { pid: 4711, start_time: 123_456, inode: 789 }
}

fn report() -> ExitReport {
    ExitReport { code: 137, signal: 9, finished_at: 1_763_352_125_000_000_001, unknown: true }
}

fn requests() -> Vec<(&'static str, request::RequestKind)> {
    use request::RequestKind as Body;
    let container = || "c1".to_owned();
    vec![
        (
            "hello",
            Body::Hello(Hello { protocol_min: 1, protocol_max: 2, features: vec!["f".into()], boot_id: "b".into() }),
        ),
        ("setup", Body::Setup(SetupRequest {})),
        (
            "launch",
            Body::Launch(LaunchRequest {
                container: container(),
                stdio: Some(stdio()),
                deadline_ms: 1000,
                log_path: "/var/log/pods/p/c/0.log".into(),
                oom_file: "/sys/fs/cgroup/memory/p/c1/memory.oom_control".into(),
                target_container: "c0".into(),
            }),
        ),
        ("abort_launch", Body::AbortLaunch(AbortLaunch { container: container() })),
        ("close_stdin", Body::CloseStdin(CloseStdin { container: container() })),
        ("reopen_log", Body::ReopenLog(ReopenLog { container: container() })),
        ("ack_exit", Body::AckExit(AckExit { seq: 300 })),
        ("shutdown", Body::Shutdown(ShimShutdown {})),
        ("stop_signal", Body::StopSignal(StopSignal { container: container(), signal: 15 })),
        (
            "exec",
            Body::Exec(ExecRequest {
                container: container(),
                exec: "e1".into(),
                stdio: Some(stdio()),
                sync: true,
                deadline_ms: 5000,
            }),
        ),
        ("attach", Body::Attach(Attach { container: container(), streams: vec![0, 1, 2] })),
        (
            "adopt",
            Body::Adopt(Adopt {
                namespaces: vec![0, 1, 2, 3, 4],
                containers: vec![AdoptContainer {
                    container: container(),
                    process: Some(process()),
                    stdio: Some(stdio()),
                    log_path: "/l".into(),
                    oom_file: "/o".into(),
                    descriptors: vec![5, 6],
                }],
            }),
        ),
    ]
}

fn events() -> Vec<(&'static str, event::EventBody)> {
    use event::EventBody as Body;
    vec![
        (
            "exited",
            Body::Exited(Exited { container: "c1".into(), report: Some(report()), oom_kills: 1, started_at: 5 }),
        ),
        (
            "exec_exited",
            Body::ExecExited(ExecExited {
                container: "c1".into(),
                exec: "e1".into(),
                report: Some(report()),
                deadline_exceeded: true,
            }),
        ),
        ("log_failed", Body::LogFailed(LogFailed { container: "c1".into(), errno: 28 })),
        ("pause_exited", Body::PauseExited(report())),
    ]
}

fn answers() -> Vec<(&'static str, answer::AnswerBody)> {
    use answer::AnswerBody as Body;
    let entry =
        ReportedContainer { container: "c1".into(), phase: 1, process: Some(process()), stop_signal_sent: true };
    vec![
        ("done", Body::Done(Done {})),
        ("refusal", Body::Refusal(RequestRefusal { reason: 3, text: "no".into() })),
        (
            "hello_reply",
            Body::Hello(HelloReply {
                protocol: 1,
                features: vec!["f".into()],
                boot_id: "b".into(),
                pod: "p".into(),
                containers: vec![entry],
                holds: 2,
                events: 4,
                refused: vec![],
            }),
        ),
        ("setup_reply", Body::Setup(SetupReply { kinds: vec![0, 1], pause: Some(process()) })),
        (
            "launched",
            Body::Launched(LaunchReply {
                process: Some(process()),
                uid: 1,
                gid: 2,
                groups: vec![3, 4],
                home: "/h".into(),
                started_at: 9,
            }),
        ),
        (
            "launch_failed",
            Body::LaunchFailed(LaunchFailed { step: 18, errno: Some(2), text: "exec /foo".into(), user: None }),
        ),
        ("stop_signal_reply", Body::StopSignal(StopSignalReply { result: 1 })),
        ("exec_started", Body::ExecStarted(ExecStarted { exec: "e1".into(), pid: 42, kinds: vec![5, 7, 8, 9] })),
    ]
}

/// Every packet of this version: its name and its bytes.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let mut packets = vec![
        ("fork", encode(&ForkRequest { pod: "p".into() })),
        ("fork_reply", encode(&ForkReply { pid: Some(5), errno: 11 })),
    ];
    for (name, body) in requests() {
        packets.push((name, encode(&Request { id: 1, body: Some(body) })));
    }
    let from_shim = |body| encode(&ShimPacket { body: Some(body) });
    for (name, body) in answers() {
        packets.push((name, from_shim(shim_packet::PacketBody::Answer(RequestAnswer { id: 1, body: Some(body) }))));
    }
    for (name, body) in events() {
        packets.push((name, from_shim(shim_packet::PacketBody::Event(ShimEvent { seq: 7, body: Some(body) }))));
    }
    let hold = Hold { container: Some("c1".into()), kinds: vec![5, 6] };
    packets.push(("hold", from_shim(shim_packet::PacketBody::Hold(hold))));
    packets
}

/// A change of these bytes breaks shims that run while the agent is upgraded. After a release, add a file and keep the old ones.
#[test]
fn packets_of_version_1_keep_their_bytes() {
    let mut text = String::new();
    for (name, bytes) in packets() {
        let hex: String = bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        writeln!(text, "{name} {hex}").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/packets/v1");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

#[test]
fn a_request_of_a_later_version_has_no_body() {
    // Field 99, an empty message.
    let unknown = [8, 1, 0x9a, 6, 0];
    let request: Request = decode(&unknown).unwrap();
    assert_eq!((request.id, request.body), (1, None));
}

#[test]
fn a_plan_arrives_only_in_a_sealed_memfd() {
    let plan = SetupPlan { hostname: "h".into(), new_uts: true, ..SetupPlan::default() };
    let sealed = sealed_memfd(&plan).unwrap();
    assert_eq!(read_sealed::<SetupPlan>(sealed.try_clone().unwrap()).unwrap(), plan);
    assert!(std::fs::File::from(sealed).write_all(b"x").is_err());
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(read_sealed::<SetupPlan>(open), Err(ProtocolError::Memfd)));
    let file = std::fs::File::open("/etc/passwd").unwrap();
    assert!(matches!(read_sealed::<SetupPlan>(file.into()), Err(ProtocolError::Memfd)));
}

proptest! {
    #[test]
    fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode::<Request>(&bytes);
        let _ = decode::<ShimPacket>(&bytes);
        let _ = decode::<ForkRequest>(&bytes);
        let _ = decode::<crate::plan::LaunchPlan>(&bytes);
    }

    #[test]
    fn a_damaged_packet_is_refused_without_a_panic(which in 0usize..28, at in 0usize..200, byte in any::<u8>(), cut in 0usize..200) {
        let packets = packets();
        let mut bytes = packets[which % packets.len()].1.clone();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut.max(1));
        let _ = decode::<Request>(&bytes);
        let _ = decode::<ShimPacket>(&bytes);
    }
}
