//! The cases.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use podwright_linux::scm;
use podwright_shim::client::{Incoming, RequestPacket, ShimAnswer, ShimClient, ShimClientError};
use podwright_shim::protocol::{
    AbortLaunch, Adopt, AdoptContainer, Attach, AttachStream, CloseStdin, ContainerPhase, DescriptorKind, ExecRequest,
    HelloReply, LaunchRequest, RefusalReason, ReopenLog, SOCKET_NAME, StdioPlan, StopSignal, StopSignalResult, event,
    request,
};
use podwright_shim::run_files::ContainerDir;
use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::hanging;
use crate::pod::{LIMIT, Pod, Running, eventually, pid, wait_exit};

pub(crate) const CASES: &[(&str, fn())] = &[
    ("output_is_logged_and_the_exit_is_recorded", output_is_logged_and_the_exit_is_recorded),
    ("the_socket_and_the_zygote_survive_garbage", the_socket_and_the_zygote_survive_garbage),
    ("an_idle_shim_has_little_private_memory", an_idle_shim_has_little_private_memory),
    ("the_newest_connection_wins", the_newest_connection_wins),
    ("the_executable_of_a_shim_cannot_be_written", the_executable_of_a_shim_cannot_be_written),
    ("a_shim_that_idles_ends_with_sigterm", a_shim_that_idles_ends_with_sigterm),
    ("an_exit_survives_a_shim_that_is_killed_before_it_reaps", an_exit_survives_a_shim_that_is_killed_before_it_reaps),
    ("a_new_agent_gets_exits_that_were_not_acknowledged", a_new_agent_gets_exits_that_were_not_acknowledged),
    ("a_failed_launch_names_the_program", a_failed_launch_names_the_program),
    ("a_launch_that_cannot_be_killed_is_answered", hanging::that_cannot_be_killed),
    ("a_launch_that_hangs_can_be_aborted_and_has_a_deadline", a_launch_that_hangs_can_be_aborted_and_has_a_deadline),
    ("a_flood_of_output_does_not_starve_others", a_flood_of_output_does_not_starve_others),
    ("a_container_that_never_reads_its_input_blocks_nothing", a_container_that_never_reads_its_input_blocks_nothing),
    ("attached_clients_get_output_and_send_input", attached_clients_get_output_and_send_input),
    ("the_stop_signal_is_sent_once", the_stop_signal_is_sent_once),
    ("a_rotated_log_loses_no_line", a_rotated_log_loses_no_line),
    ("a_terminal_is_logged_and_takes_input", a_terminal_is_logged_and_takes_input),
    ("orphans_of_a_container_are_reaped", orphans_of_a_container_are_reaped),
    ("an_exec_has_its_own_streams_and_exit", an_exec_has_its_own_streams_and_exit),
    ("an_exec_ends_at_its_deadline_and_with_its_agent", an_exec_ends_at_its_deadline_and_with_its_agent),
    ("a_new_shim_adopts_containers", a_new_shim_adopts_containers),
    ("a_container_that_cannot_be_adopted_leaves_the_others", a_container_that_cannot_be_adopted_leaves_the_others),
    ("a_terminal_that_is_closed_for_a_moment_is_logged_on", a_terminal_that_is_closed_for_a_moment_is_logged_on),
    ("a_shim_without_descriptors_does_not_spin", a_shim_without_descriptors_does_not_spin),
    ("a_descriptor_that_no_request_needs_is_refused", a_descriptor_that_no_request_needs_is_refused),
    ("a_program_on_a_file_system_that_hangs_blocks_no_other_container", hanging::program_of_a_container),
    ("an_exec_that_hangs_is_killed_at_its_deadline", hanging::program_of_an_exec),
    ("a_launch_that_hangs_in_a_user_namespace_is_killed", hanging::program_in_a_user_namespace),
];

fn output_is_logged_and_the_exit_is_recorded() {
    let mut pod = Pod::start();
    let running = pod.run("c1", "echo out; echo err >&2; printf tail; exit 42");
    assert!(running.reply.process.unwrap().pid > 1);
    let (seq, exited) = pod.exited("c1");
    let report = exited.report.unwrap();
    assert_eq!((report.code, report.signal, report.unknown), (42, 0, false));
    assert!(exited.started_at > 0 && report.finished_at >= exited.started_at);
    let mut lines = pod.logged("c1");
    lines.sort();
    assert_eq!(lines, ["err", "out", "tail"]);
    let text = fs::read_to_string(pod.log("c1")).unwrap();
    assert!(text.contains(" stdout F out\n") && text.contains(" stderr F err\n") && text.contains(" stdout P tail\n"));
    let dir = ContainerDir::open(&pod.dir_fd, "c1").unwrap();
    assert_eq!(dir.exit().unwrap().unwrap(), exited);
    assert_eq!(dir.process().unwrap(), running.reply.process);
    pod.acknowledge(seq);
    assert!(pod.reconnect().containers.is_empty());
    assert!(matches!(pod.shut_down(), ShimAnswer::Done(_)));
    wait_exit(&pod.shim_fd);
    assert!(!pod.dir.path().join(SOCKET_NAME).exists());
}

fn the_socket_and_the_zygote_survive_garbage() {
    let mut pod = Pod::start();
    let null = File::open("/dev/null").unwrap();
    for garbage in [&b"\xff\xff\xff\xff"[..], &[0; 1000], b"GET / HTTP/1.1\r\n\r\n", &[0x12, 0x05, 1, 2], &[8, 1]] {
        let connection = scm::connect(pod.dir_fd.as_fd(), SOCKET_NAME).unwrap();
        scm::send(&connection, garbage, &[null.as_fd(), null.as_fd()]).unwrap();
        let mut client = ShimClient::from_socket(connection).unwrap();
        assert!(matches!(client.wait(LIMIT), Err(ShimClientError::Closed)), "{garbage:?}");
    }
    // A large packet, and one of a kind that only a valid Hello allows.
    let connection = scm::connect(pod.dir_fd.as_fd(), SOCKET_NAME).unwrap();
    rustix::net::send(&connection, &vec![1; 100 << 10], rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(ShimClient::from_socket(connection).unwrap().wait(LIMIT), Err(ShimClientError::Closed)));
    let mut stranger = ShimClient::connect(pod.dir_fd.as_fd()).unwrap();
    let call = stranger.call(&RequestPacket::new(request::RequestKind::Shutdown(Default::default())), LIMIT);
    assert!(matches!(call, Err(ShimClientError::Closed)), "{call:?}");
    let mut other_boot = ShimClient::connect(pod.dir_fd.as_fd()).unwrap();
    let refused = other_boot.call(&RequestPacket::hello("another-boot"), LIMIT).unwrap();
    assert!(matches!(refused, ShimAnswer::Refused(_)), "{refused:?}");
    // The first connection still works, and so does the zygote.
    assert_eq!(pod.hello().pod, "test-pod");
    let other = tempfile::tempdir().unwrap();
    let forked = pod.zygote.fork("another", File::open(other.path()).unwrap().as_fd()).unwrap();
    let mut client = ShimClient::from_socket(forked.connection).unwrap();
    let hello = client.call(&RequestPacket::hello(&crate::pod::boot_id()), LIMIT).unwrap();
    assert!(matches!(&hello, ShimAnswer::State(state) if state.pod == "another"), "{hello:?}");
    let done = client.call(&RequestPacket::new(request::RequestKind::Shutdown(Default::default())), LIMIT).unwrap();
    assert!(matches!(done, ShimAnswer::Done(_)));
    wait_exit(&forked.pidfd);
}

fn an_idle_shim_has_little_private_memory() {
    let mut pod = Pod::start();
    pod.run("c1", "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done; exec sleep 1000");
    eventually("the log", || pod.logged("c1").len() == 1000);
    let smaps = fs::read_to_string(format!("/proc/{}/smaps_rollup", pod.shim)).unwrap();
    let field = |name: &str| -> u64 {
        let line = smaps.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let private = field("Private_Clean:") + field("Private_Dirty:");
    println!(
        "private memory of an idle shim with one container: {private} KiB, of which dirty {}",
        field("Private_Dirty:")
    );
    assert!(private < 1024, "{smaps}");
}

fn the_newest_connection_wins() {
    let mut pod = Pod::start();
    let mut old = std::mem::replace(&mut pod.client, ShimClient::connect(pod.dir_fd.as_fd()).unwrap());
    pod.hello();
    assert!(matches!(old.wait(LIMIT), Err(ShimClientError::Closed)));
    assert!(matches!(pod.ask(request::RequestKind::AckExit(Default::default())), ShimAnswer::Done(_)));
}

fn the_executable_of_a_shim_cannot_be_written() {
    let pod = Pod::start();
    let exe = format!("/proc/{}/exe", pod.shim);
    assert!(File::open(&exe).is_ok());
    let held = rustix::fs::open(&exe, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert!(fs::OpenOptions::new().write(true).open(&exe).is_err());
    pod.kill_shim();
    // Nothing executes it any more, as after a container's escape: the mount is still read-only.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    let error = fs::OpenOptions::new().write(true).open(path).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(30 | 26)), "{error}");
}

fn a_shim_that_idles_ends_with_sigterm() {
    let pod = Pod::start();
    kill_process(pid(pod.shim), Signal::TERM).unwrap();
    wait_exit(&pod.shim_fd);
}

/// Record first, reap second: the exit is on disk, the zombie and its status come to the subreaper, and a new shim reports the exit.
fn an_exit_survives_a_shim_that_is_killed_before_it_reaps() {
    let mut pod = Pod::start();
    let gate = pod.dir.path().join("gate");
    let running = pod.run("c1", &format!("while [ ! -e {} ]; do sleep 0.02; done; exit 42", gate.display()));
    crate::trace::kill_before_reaping(pod.shim, || fs::write(&gate, "").unwrap());
    let exited = ContainerDir::open(&pod.dir_fd, "c1").unwrap().exit().unwrap().expect("a record");
    assert_eq!(exited.report.unwrap().code, 42);
    let status = waitid(WaitId::PidFd(running.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(42), "the shim has not reaped");
    replace_shim(&mut pod, &running);
    assert_eq!(pod.exited("c1").1, exited);
}

/// As the agent does when it has lost a shim: another one from the zygote, which gets the pidfd.
fn replace_shim(pod: &mut Pod, running: &Running) -> HelloReply {
    let forked = pod.zygote.fork("test-pod", pod.dir_fd.as_fd()).unwrap();
    pod.client = ShimClient::from_socket(forked.connection).unwrap();
    (pod.shim, pod.shim_fd) = (forked.pid, forked.pidfd);
    pod.hello();
    let container = AdoptContainer {
        container: "c1".into(),
        process: running.reply.process,
        stdio: Some(StdioPlan::default()),
        log_path: pod.log("c1").to_str().unwrap().into(),
        oom_file: String::new(),
        descriptors: vec![DescriptorKind::Pidfd.into()],
    };
    let adopt = Adopt { namespaces: vec![], containers: vec![container] };
    let packet = RequestPacket::adopt(adopt, vec![running.pidfd.try_clone().unwrap()]);
    match pod.client.call(&packet, LIMIT).unwrap() {
        ShimAnswer::State(state) => state,
        other => panic!("{other:?}"),
    }
}

fn a_new_agent_gets_exits_that_were_not_acknowledged() {
    let mut pod = Pod::start();
    pod.run("c1", "exit 7");
    let running = pod.run("c2", "exec sleep 1000");
    let (seq, exited) = pod.exited("c1");
    // The agent dies without an acknowledgement; meanwhile another container exits.
    drop(std::mem::replace(&mut pod.client, ShimClient::connect(pod.dir_fd.as_fd()).unwrap()));
    rustix::process::pidfd_send_signal(&running.pidfd, Signal::KILL).unwrap();
    wait_exit(&running.pidfd);
    eventually("the record", || ContainerDir::open(&pod.dir_fd, "c2").unwrap().exit().unwrap().is_some());
    let state = pod.hello();
    assert!(state.containers.iter().all(|c| c.phase == i32::from(ContainerPhase::Exited)), "{state:?}");
    assert_eq!(pod.exited("c1"), (seq, exited));
    let (second, exited) = pod.exited("c2");
    assert_eq!((exited.report.unwrap().code, exited.report.unwrap().signal), (137, 9));
    pod.acknowledge(seq);
    let state = pod.reconnect();
    assert_eq!((state.containers.len(), state.events), (1, 1), "one was acknowledged");
    assert_eq!(pod.exited("c2").0, second);
    pod.acknowledge(second);
    assert_eq!(pod.reconnect().events, 0);
}

fn a_failed_launch_names_the_program() {
    let mut pod = Pod::start();
    let mut plan = pod.plan("c1", "");
    plan.process.as_mut().unwrap().argv = vec![b"/no/such/program".to_vec()];
    let packet = RequestPacket::launch(pod.request("c1", StdioPlan::default()), &plan).unwrap();
    let ShimAnswer::LaunchFailed(failed) = pod.client.call(&packet, LIMIT).unwrap() else { panic!("launched") };
    assert!(failed.text.contains("/no/such/program") && failed.text.contains("no such file"), "{failed:?}");
    assert!(pod.reconnect().containers.is_empty());
    // The same id can be launched again.
    pod.run("c1", "exit 0");
    assert_eq!(pod.exited("c1").1.report.unwrap().code, 0);
    let refused = pod.ask(request::RequestKind::AbortLaunch(AbortLaunch { container: "c1".into() }));
    assert!(matches!(refused, ShimAnswer::Refused(r) if r.reason == i32::from(RefusalReason::WrongState)));
    let bad = LaunchRequest { container: "../x".into(), ..LaunchRequest::default() };
    let packet = RequestPacket::launch(bad, &pod.plan("x", "")).unwrap();
    assert!(matches!(pod.client.call(&packet, LIMIT).unwrap(), ShimAnswer::Refused(_)));
}

fn a_launch_that_hangs_can_be_aborted_and_has_a_deadline() {
    let mut pod = Pod::start();
    let mut plan = pod.plan("c1", "");
    plan.process.as_mut().unwrap().argv = vec![crate::plain::HANGS.into()];
    let mut request = pod.request("c1", StdioPlan::default());
    request.deadline_ms = 200;
    let answer = pod.client.call(&RequestPacket::launch(request.clone(), &plan).unwrap(), LIMIT).unwrap();
    assert!(matches!(&answer, ShimAnswer::LaunchFailed(failed) if failed.text.contains("deadline")), "{answer:?}");

    request.deadline_ms = 0;
    let packet = RequestPacket::launch(request, &plan).unwrap();
    let launch = pod.client.send(&packet).unwrap().unwrap();
    assert_eq!(pod.hello().containers[0].phase, i32::from(ContainerPhase::Launching));
    assert!(matches!(pod.shut_down(), ShimAnswer::Refused(_)));
    // Meanwhile others start and end.
    pod.run("c2", "exit 0");
    pod.exited("c2");
    // A new agent asks again; the answer is its.
    pod.reconnect();
    let again = pod.client.send(&packet).unwrap().unwrap();
    assert!(launch > 0);
    assert!(matches!(
        pod.ask(request::RequestKind::AbortLaunch(AbortLaunch { container: "c1".into() })),
        ShimAnswer::Done(_)
    ));
    loop {
        match pod.client.wait(LIMIT).unwrap() {
            Incoming::Answer(id, ShimAnswer::LaunchFailed(failed)) => {
                assert_eq!((id, failed.text.as_str()), (again, "the launch was aborted"));
                break;
            }
            Incoming::Answer(id, other) => panic!("{id}: {other:?}"),
            _ => {}
        }
    }
    assert!(pod.hello().containers.iter().all(|container| container.container != "c1"));
}

fn a_flood_of_output_does_not_starve_others() {
    let mut pod = Pod::start();
    let flood = pod.run("flood", "exec yes 0123456789012345678901234567890123456789");
    eventually("the flood", || fs::metadata(pod.log("flood")).is_ok_and(|m| m.len() > 4 << 20));
    let start = Instant::now();
    pod.run("calm", "echo calm; exit 3");
    assert_eq!(pod.exited("calm").1.report.unwrap().code, 3);
    println!("a launch, its line and its exit during a flood: {:?}", start.elapsed());
    assert_eq!(pod.logged("calm"), ["calm"]);
    rustix::process::pidfd_send_signal(&flood.pidfd, Signal::KILL).unwrap();
    assert_eq!(pod.exited("flood").1.report.unwrap().signal, 9);
    let lines = pod.logged("flood");
    assert!(lines[..lines.len() - 1].iter().all(|line| line == "0123456789012345678901234567890123456789"));
}

fn attach(pod: &mut Pod, container: &str, streams: &[AttachStream]) -> Vec<File> {
    let streams = streams.iter().map(|stream| i32::from(*stream)).collect();
    match pod.ask(request::RequestKind::Attach(Attach { container: container.into(), streams })) {
        ShimAnswer::Done(fds) => fds.into_iter().map(File::from).collect(),
        other => panic!("{other:?}"),
    }
}

fn a_container_that_never_reads_its_input_blocks_nothing() {
    let mut pod = Pod::start();
    let stdin = StdioPlan { stdin: true, ..StdioPlan::default() };
    pod.run_with("deaf", "exec sleep 1000", stdin);
    let mut client = attach(&mut pod, "deaf", &[AttachStream::Stdin]).remove(0);
    rustix::io::ioctl_fionbio(&client, true).unwrap();
    let (mut sent, mut idle) = (0, 0);
    while idle < 20 {
        match client.write(&[b'x'; 4096]) {
            Ok(count) => (sent, idle) = (sent + count, 0),
            Err(_) => {
                idle += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 8 << 20, "the shim takes input without bound");
    }
    let before = cpu_ticks(pod.shim);
    pod.run("other", "echo ok");
    pod.exited("other");
    assert_eq!(pod.logged("other"), ["ok"]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(cpu_ticks(pod.shim) - before < 30, "the shim spins");
    let closed = pod.ask(request::RequestKind::CloseStdin(CloseStdin { container: "deaf".into() }));
    assert!(matches!(closed, ShimAnswer::Done(_)));
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn attached_clients_get_output_and_send_input() {
    let mut pod = Pod::start();
    let once = StdioPlan { stdin: true, stdin_once: true, ..StdioPlan::default() };
    pod.run_with("cat", "echo ready >&2; cat; echo done", once);
    let mut fds = attach(&mut pod, "cat", &[AttachStream::Stdin, AttachStream::Stdout]);
    let (mut output, mut input) = (fds.pop().unwrap(), fds.pop().unwrap());
    input.write_all(b"hello\n").unwrap();
    drop(input);
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\ndone\n", "standard input has ended, because its client left");
    assert_eq!(pod.exited("cat").1.report.unwrap().code, 0);
    let late = pod.ask(request::RequestKind::Attach(Attach { container: "cat".into(), streams: vec![1] }));
    assert!(matches!(late, ShimAnswer::Refused(_)));
    // A client that does not read is dropped, and the container goes on.
    pod.run("loud", "head -c 8000000 /dev/zero | tr '\\0' x; echo; echo end");
    let slow = attach(&mut pod, "loud", &[AttachStream::Stdout]);
    assert_eq!(pod.exited("loud").1.report.unwrap().code, 0);
    assert_eq!(pod.logged("loud").last().unwrap(), "end");
    drop(slow);
}

fn the_stop_signal_is_sent_once() {
    let mut pod = Pod::start();
    let script = "trap 'echo got' TERM; echo ready; while true; do sleep 0.05; done";
    let running = pod.run("c1", script);
    eventually("the trap", || pod.logged("c1") == ["ready"]);
    let stop = || request::RequestKind::StopSignal(StopSignal { container: "c1".into(), signal: 15 });
    let result = |answer| match answer {
        ShimAnswer::StopSignal(result) => result,
        other => panic!("{other:?}"),
    };
    assert_eq!(result(pod.ask(stop())), StopSignalResult::Sent);
    assert!(ContainerDir::open(&pod.dir_fd, "c1").unwrap().stop_signal_sent().unwrap());
    assert_eq!(result(pod.ask(stop())), StopSignalResult::AlreadySent);
    let state = pod.reconnect();
    assert!(state.containers[0].stop_signal_sent);
    assert_eq!(result(pod.ask(stop())), StopSignalResult::AlreadySent);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pod.logged("c1"), ["ready", "got"]);
    let busy = pod.shut_down();
    assert!(matches!(busy, ShimAnswer::Refused(r) if r.reason == i32::from(RefusalReason::WrongState)));
    rustix::process::pidfd_send_signal(&running.pidfd, Signal::KILL).unwrap();
    pod.exited("c1");
    assert_eq!(result(pod.ask(stop())), StopSignalResult::Gone);
}

fn a_rotated_log_loses_no_line() {
    let mut pod = Pod::start();
    pod.run("c1", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done");
    let mut all = vec![];
    for n in 0..5 {
        let rotated = pod.dir.path().join(format!("rotated-{n}"));
        fs::rename(pod.log("c1"), &rotated).unwrap();
        assert!(matches!(
            pod.ask(request::RequestKind::ReopenLog(ReopenLog { container: "c1".into() })),
            ShimAnswer::Done(_)
        ));
        all.push(rotated);
        std::thread::sleep(Duration::from_millis(5));
    }
    pod.exited("c1");
    all.push(pod.log("c1"));
    let text: String = all.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let lines: Vec<usize> = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(lines, (0..3000).collect::<Vec<_>>());
}

fn a_terminal_is_logged_and_takes_input() {
    let mut pod = Pod::start();
    let stdio = StdioPlan { terminal: true, stdin: true, ..StdioPlan::default() };
    let running = pod.run_with("tty", "test -t 0 && echo terminal; read line; echo got $line; exit 4", stdio);
    assert!(running.pty.is_some());
    let mut fds = attach(&mut pod, "tty", &[AttachStream::Stdin, AttachStream::Stdout]);
    let _output = fds.pop().unwrap();
    fds.pop().unwrap().write_all(b"input\n").unwrap();
    assert_eq!(pod.exited("tty").1.report.unwrap().code, 4);
    let lines = pod.logged("tty");
    assert!(lines.contains(&"terminal\r".to_owned()) || lines.contains(&"terminal".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.trim_end() == "got input"), "{lines:?}");
}

fn orphans_of_a_container_are_reaped() {
    let mut pod = Pod::start();
    let running = pod.run("c1", "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; echo started; exec sleep 1000");
    eventually("the orphans", || pod.logged("c1") == ["started"]);
    std::thread::sleep(Duration::from_millis(300));
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.shim)).unwrap();
    let init = running.reply.process.unwrap().pid.to_string();
    eventually("only the init is left", || children().split_whitespace().collect::<Vec<_>>() == [init.as_str()]);
}

fn an_exec_has_its_own_streams_and_exit() {
    let mut pod = Pod::start();
    pod.run("c1", "exec sleep 1000");
    let stdio = StdioPlan { stdin: true, ..StdioPlan::default() };
    let request = ExecRequest { container: "c1".into(), exec: "e1".into(), stdio: Some(stdio), ..Default::default() };
    let ShimAnswer::ExecStarted { started, descriptors } = pod.exec(request, "cat; echo err >&2; exit 9") else {
        panic!("not started")
    };
    assert_eq!(started.exec, "e1");
    let mut streams = descriptors.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    let mut take = |kind| File::from(streams.remove(&kind).unwrap());
    take(DescriptorKind::Stdin).write_all(b"in").unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    take(DescriptorKind::Stdout).read_to_string(&mut out).unwrap();
    take(DescriptorKind::Stderr).read_to_string(&mut err).unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("in", "err\n"));
    let exited = exec_exited(&mut pod);
    assert_eq!((exited.exec.as_str(), exited.report.unwrap().code), ("e1", 9));
    assert!(pod.logged("c1").is_empty(), "an exec is not logged");
}

fn exec_exited(pod: &mut Pod) -> podwright_shim::protocol::ExecExited {
    match pod.event().body {
        Some(event::EventBody::ExecExited(exited)) => exited,
        other => panic!("{other:?}"),
    }
}

fn an_exec_ends_at_its_deadline_and_with_its_agent() {
    let mut pod = Pod::start();
    pod.run("c1", "exec sleep 1000");
    let request = |exec: &str, deadline_ms| ExecRequest {
        container: "c1".into(),
        exec: exec.into(),
        sync: true,
        deadline_ms,
        ..Default::default()
    };
    let late = pod.exec(request("late", 300), "sleep 1000 & sleep 1000; exit 0");
    assert!(matches!(late, ShimAnswer::ExecStarted { .. }), "{late:?}");
    let exited = exec_exited(&mut pod);
    assert_eq!((exited.exec.as_str(), exited.report.unwrap().signal, exited.deadline_exceeded), ("late", 9, true));
    let lost = pod.exec(request("lost", 0), "exec sleep 1000");
    assert!(matches!(lost, ShimAnswer::ExecStarted { .. }), "{lost:?}");
    pod.reconnect();
    loop {
        let exited = exec_exited(&mut pod);
        if exited.exec == "lost" {
            assert_eq!((exited.report.unwrap().signal, exited.deadline_exceeded), (9, false));
            return;
        }
    }
}

fn a_new_shim_adopts_containers() {
    let mut pod = Pod::start();
    let script = "trap 'echo got; exit 5' TERM; echo one; while true; do sleep 0.05; echo tick; done";
    let running = pod.run("c1", script);
    eventually("output", || pod.logged("c1").len() > 2);
    pod.kill_shim();
    let state = replace_shim(&mut pod, &running);
    assert_eq!((state.containers[0].phase, state.holds), (i32::from(ContainerPhase::Running), 1));
    assert!(matches!(pod.client.wait(LIMIT).unwrap(), Incoming::Hold { container: Some(c), .. } if c == "c1"));
    let before = pod.logged("c1").len();
    eventually("output goes on", || pod.logged("c1").len() > before + 2);
    let stop = request::RequestKind::StopSignal(StopSignal { container: "c1".into(), signal: 15 });
    assert!(matches!(pod.ask(stop), ShimAnswer::StopSignal(StopSignalResult::Sent)));
    wait_exit(&running.pidfd);
    // As the agent does, which is the subreaper.
    let status = waitid(WaitId::PidFd(running.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(5));
    let exited = pod.exited("c1").1;
    let report = exited.report.unwrap();
    assert!(report.unknown || report.code == 5, "{report:?}");
    println!("exit of an adopted container: {report:?}");
    // Also if the agent has lost the answer to the launch, it was started.
    let difference = exited.started_at.abs_diff(running.reply.started_at);
    assert!(difference < 1_000_000_000, "started at {}, adopted as {}", running.reply.started_at, exited.started_at);
    assert!(pod.logged("c1").contains(&"got".to_owned()));
}

fn a_container_that_cannot_be_adopted_leaves_the_others() {
    let mut pod = Pod::start();
    let running = pod.run("c1", "echo one; exec sleep 1000");
    pod.kill_shim();
    let forked = pod.zygote.fork("test-pod", pod.dir_fd.as_fd()).unwrap();
    pod.client = ShimClient::from_socket(forked.connection).unwrap();
    (pod.shim, pod.shim_fd) = (forked.pid, forked.pidfd);
    pod.hello();
    let adopted = |container: &str| AdoptContainer {
        container: container.into(),
        process: running.reply.process,
        stdio: Some(StdioPlan::default()),
        descriptors: vec![DescriptorKind::Pidfd.into()],
        ..AdoptContainer::default()
    };
    // Its run directory is gone.
    let containers = vec![adopted("lost"), adopted("c1")];
    let copy = || running.pidfd.try_clone().unwrap();
    // A terminal is nothing of a pod: that part fails too, and nothing else because of it.
    let adopt = Adopt { namespaces: vec![DescriptorKind::Pty.into()], containers };
    let answer = pod.client.call(&RequestPacket::adopt(adopt, vec![copy(), copy(), copy()]), LIMIT).unwrap();
    let ShimAnswer::State(state) = answer else { panic!("{answer:?}") };
    let known: Vec<&str> = state.containers.iter().map(|container| container.container.as_str()).collect();
    assert_eq!(known, ["c1"]);
    let refused: Vec<Option<&str>> = state.refused.iter().map(|refused| refused.container.as_deref()).collect();
    assert_eq!(refused, [None, Some("lost")], "{state:?}");
}

fn a_terminal_that_is_closed_for_a_moment_is_logged_on() {
    let mut pod = Pod::start();
    let stdio = StdioPlan { terminal: true, ..StdioPlan::default() };
    let script = "t=$(tty); echo one; exec 0<&- 1>&- 2>&-; sleep 0.5; exec 0<>$t 1>&0 2>&0; echo two; exit 4";
    pod.run_with("tty", script, stdio);
    eventually("the first line", || pod.logged("tty").len() == 1);
    let before = cpu_ticks(pod.shim);
    assert_eq!(pod.exited("tty").1.report.unwrap().code, 4);
    let lines: Vec<String> = pod.logged("tty").iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(lines, ["one", "two"]);
    assert!(cpu_ticks(pod.shim) - before < 30, "the shim spins");
}

fn a_shim_without_descriptors_does_not_spin() {
    use rustix::process::{Resource, Rlimit, prlimit};
    let mut pod = Pod::start();
    let free = (0..).find(|number| !fs::exists(format!("/proc/{}/fd/{number}", pod.shim)).unwrap());
    let limit = Rlimit { current: free, ..rustix::process::getrlimit(Resource::Nofile) };
    let before = prlimit(Some(pid(pod.shim)), Resource::Nofile, limit).unwrap();
    let mut client = ShimClient::connect(pod.dir_fd.as_fd()).unwrap();
    let ticks = cpu_ticks(pod.shim);
    std::thread::sleep(Duration::from_millis(600));
    assert!(cpu_ticks(pod.shim) - ticks < 20, "the shim spins");
    prlimit(Some(pid(pod.shim)), Resource::Nofile, before).unwrap();
    // The connection that waited is served.
    let state = client.call(&RequestPacket::hello(&crate::pod::boot_id()), LIMIT).unwrap();
    assert!(matches!(state, ShimAnswer::State(_)), "{state:?}");
    pod.client = client;
}

fn a_descriptor_that_no_request_needs_is_refused() {
    use prost::Message;
    let mut pod = Pod::start();
    let null = File::open("/dev/null").unwrap();
    let acknowledge = request::RequestKind::AckExit(Default::default());
    for body in [acknowledge, request::RequestKind::Shutdown(Default::default())] {
        let packet = podwright_shim::protocol::Request { id: 1, body: Some(body) };
        scm::send(&pod.client, &packet.encode_to_vec(), &[null.as_fd()]).unwrap();
        let closed = pod.client.wait(LIMIT);
        assert!(matches!(closed, Err(ShimClientError::Closed)), "{closed:?}");
        pod.reconnect();
    }
    // A request of a later version may have any.
    let unknown = podwright_shim::protocol::Request { id: 1, body: None };
    scm::send(&pod.client, &unknown.encode_to_vec(), &[null.as_fd()]).unwrap();
    let refused = pod.client.wait(LIMIT).unwrap();
    assert!(matches!(&refused, Incoming::Answer(1, ShimAnswer::Refused(_))), "{refused:?}");
}
