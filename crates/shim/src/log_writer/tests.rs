use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn now() -> Timestamp {
    Timestamp::new(1_763_352_125, 120_000_000).unwrap()
}

fn logged(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn writer(dir: &tempfile::TempDir) -> (LogWriter, PathBuf) {
    let path = dir.path().join("0.log");
    (LogWriter::open(path.to_str().unwrap()).unwrap(), path)
}

#[test]
fn lines_have_time_stream_and_tag() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, path) = writer(&dir);
    log.append(OutputStream::Stdout, b"one\ntw", now()).unwrap();
    log.append(OutputStream::Stderr, b"\nerr\r\n", now()).unwrap();
    log.append(OutputStream::Stdout, b"o\nend", now()).unwrap();
    log.end(OutputStream::Stdout, now()).unwrap();
    log.end(OutputStream::Stderr, now()).unwrap();
    let at = "2025-11-17T04:02:05.120000000Z";
    let expected = [
        format!("{at} stdout F one"),
        format!("{at} stderr F "),
        format!("{at} stderr F err\r"),
        format!("{at} stdout F two"),
        format!("{at} stdout P end"),
    ];
    // `str::lines` takes the carriage return off; compare the bytes.
    assert_eq!(fs::read_to_string(path).unwrap(), expected.map(|line| line + "\n").concat());
}

#[test]
fn long_lines_are_written_in_pieces_of_16_kib() {
    let dir = tempfile::tempdir().unwrap();
    for (length, expected) in [
        (PIECE_BYTES, vec![("F", PIECE_BYTES)]),
        (PIECE_BYTES + 1, vec![("P", PIECE_BYTES), ("F", 1)]),
        (2 * PIECE_BYTES, vec![("P", PIECE_BYTES), ("F", PIECE_BYTES)]),
        (2 * PIECE_BYTES + 5, vec![("P", PIECE_BYTES), ("P", PIECE_BYTES), ("F", 5)]),
    ] {
        let path = dir.path().join(length.to_string());
        let mut log = LogWriter::open(path.to_str().unwrap()).unwrap();
        let mut text = vec![b'x'; length];
        text.push(b'\n');
        log.append(OutputStream::Stdout, &text, now()).unwrap();
        let lines = logged(&path);
        let found: Vec<(&str, usize)> = lines
            .iter()
            .map(|line| {
                let mut parts = line.splitn(4, ' ').skip(2);
                (parts.next().unwrap(), parts.next().unwrap().len())
            })
            .collect();
        assert_eq!(found, expected, "a line of {length} bytes");
    }
}

#[test]
fn a_reopened_log_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, path) = writer(&dir);
    log.append(OutputStream::Stdout, b"old\nunfin", now()).unwrap();
    let rotated = dir.path().join("0.log.1");
    fs::rename(&path, &rotated).unwrap();
    log.append(OutputStream::Stdout, b"ished\n", now()).unwrap();
    log.reopen().unwrap();
    log.append(OutputStream::Stdout, b"new\n", now()).unwrap();
    let text = |path: &Path| logged(path).iter().map(|l| l.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(text(&rotated), ["old", "unfinished"]);
    assert_eq!(text(&path), ["new"]);
    // The directory is gone: the file in use stays in use.
    fs::rename(dir.path().join("0.log"), dir.path().join("kept")).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(log.reopen().is_err(), "a symbolic link is not followed");
    log.append(OutputStream::Stdout, b"still\n", now()).unwrap();
    assert_eq!(text(&dir.path().join("kept")), ["new", "still"]);
}

#[test]
fn a_full_disk_discards_output_and_one_line_tells_how_much() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, path) = writer(&dir);
    log.append(OutputStream::Stdout, b"before\n", now()).unwrap();
    let good = log.file.replace(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()).unwrap();
    let error = log.append(OutputStream::Stdout, b"lost\n", now()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    log.append(OutputStream::Stdout, b"lost too\n", now()).expect("one report per failure");
    log.file = Some(good);
    log.append(OutputStream::Stdout, b"after\n", now()).unwrap();
    log.append(OutputStream::Stdout, b"more\n", now()).unwrap();
    let lines = logged(&path);
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines[1].contains(" stderr F [podwright: ") && lines[1].contains("No space left"), "{}", lines[1]);
    assert!(lines[2].ends_with(" F after") && lines[3].ends_with(" F more"));
    log.file = Some(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    assert!(log.append(OutputStream::Stdout, b"lost\n", now()).is_err(), "the next failure is reported again");
}

#[test]
fn a_log_without_a_path_discards_output() {
    let mut log = LogWriter::open("").unwrap();
    log.append(OutputStream::Stdout, b"text", now()).unwrap();
    log.end(OutputStream::Stdout, now()).unwrap();
    log.reopen().unwrap();
}

#[test]
fn a_fifo_in_place_of_the_log_is_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(LogWriter::open(path.to_str().unwrap()).is_err());
}

/// Lines as [`LogWriter`] writes them when all output comes in one read.
fn reference(output: &[u8]) -> Vec<u8> {
    let mut lines = vec![];
    let header = LineHeader::new(OutputStream::Stdout, now());
    let mut parts: Vec<&[u8]> = output.split(|&b| b == b'\n').collect();
    let unfinished = parts.pop().unwrap();
    let mut write = |text: &[u8], last: Tag| {
        let pieces: Vec<&[u8]> = if text.is_empty() { vec![text] } else { text.chunks(PIECE_BYTES).collect() };
        for (n, piece) in pieces.iter().enumerate() {
            header.line(if n + 1 == pieces.len() { last } else { Tag::Partial }, &[piece], &mut lines);
        }
    };
    parts.iter().for_each(|text| write(text, Tag::Full));
    if !unfinished.is_empty() {
        write(unfinished, Tag::Partial);
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_chunking_gives_the_same_lines(
        lengths in prop::collection::vec(prop_oneof![0usize..40, 16_000usize..40_000], 0..8),
        ends_with_newline in any::<bool>(),
        cuts in prop::collection::vec(1usize..20_000, 1..40),
    ) {
        let mut output = vec![];
        for (n, length) in lengths.iter().enumerate() {
            output.extend(std::iter::repeat_n(b'a' + n as u8, *length));
            output.push(b'\n');
        }
        if !ends_with_newline {
            output.pop();
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut log, path) = writer(&dir);
        let (mut rest, mut cuts) = (output.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            log.append(OutputStream::Stdout, chunk, now()).unwrap();
            rest = after;
        }
        log.end(OutputStream::Stdout, now()).unwrap();
        prop_assert!(fs::read(path).unwrap() == reference(&output));
    }
}
