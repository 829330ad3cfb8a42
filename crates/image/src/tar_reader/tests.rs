//! Streams as real tools write them, and hostile ones.

use super::*;

/// One header with its content, padded.
fn raw(kind: u8, name: &str, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(5);
    header.set_size(size);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let length = (1..).map(|digits| rest.len() + digits).find(|n| n.to_string().len() + rest.len() == *n);
        text += &format!("{}{rest}", length.unwrap());
    }
    raw(b'x', "pax", text.len() as u64, text.as_bytes())
}

fn all(bytes: &[u8]) -> Result<Vec<(TarEntry, Vec<u8>)>, TarError> {
    let mut reader = TarReader::new(bytes, 100);
    let mut found = vec![];
    while let Some(entry) = reader.next_entry()? {
        let mut content = vec![];
        reader.read_to_end(&mut content).map_err(TarError::Read)?;
        found.push((entry, content));
    }
    Ok(found)
}

#[test]
fn entries_of_the_tar_crate_are_read_with_long_names_and_links() {
    let long = "d/".repeat(120) + "file";
    let mut builder = tar::Builder::new(vec![]);
    let mut header = Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o4755);
    header.set_uid(1000);
    header.set_gid(3_000_000_000);
    header.set_mtime(7);
    header.set_entry_type(EntryType::Regular);
    builder.append_data(&mut header.clone(), &long, &b"abc"[..]).unwrap();
    header.set_size(0);
    header.set_entry_type(EntryType::Symlink);
    builder.append_link(&mut header, "link", &long).unwrap();
    let found = all(&builder.into_inner().unwrap()).unwrap();
    let (file, content) = &found[0];
    assert_eq!((file.path.as_slice(), content.as_slice()), (long.as_bytes(), &b"abc"[..]));
    assert_eq!((file.mode, file.uid, file.gid, file.mtime), (0o4755, 1000, 3_000_000_000, (7, 0)));
    assert_eq!(found[1].0.kind, TarKind::Symlink(long.into_bytes()));
}

#[test]
fn pax_records_override_the_header() {
    let records = [("path", "p"), ("size", "3"), ("uid", "70000"), ("mtime", "-1.25"), ("SCHILY.xattr.user.a", "v")];
    let bytes = [pax(&records), raw(b'0', "short", 0, b"abc"), raw(b'0', "next", 0, b"")].concat();
    let found = all(&bytes).unwrap();
    let entry = &found[0].0;
    assert_eq!((entry.path.as_slice(), found[0].1.as_slice(), entry.uid), (&b"p"[..], &b"abc"[..], 70000));
    assert_eq!((entry.mtime, entry.xattrs["user.a"].as_slice()), ((-2, 750_000_000), &b"v"[..]));
    assert_eq!((found[1].0.path.as_slice(), found[1].0.uid), (&b"next"[..], 0));
}

#[test]
fn blank_numbers_are_zero() {
    let mut header = Header::new_old();
    header.as_mut_bytes()[0] = b'f';
    header.set_size(0);
    header.set_cksum();
    let entry = &all(header.as_bytes()).unwrap()[0].0;
    assert_eq!((entry.mode, entry.uid, entry.gid, entry.mtime), (0, 0, 0, (0, 0)));
    header.as_mut_bytes()[108] = b'x';
    header.set_cksum();
    assert!(matches!(all(header.as_bytes()), Err(TarError::Header { number: 1, field: "uid" })));
}

#[test]
fn announced_sizes_have_bounds() {
    let rows = [
        (raw(b'L', "n", 5000, b""), "name has 5000 bytes"),
        (raw(b'K', "n", 1 << 32, b""), "link name has"),
        (raw(b'x', "n", 2 << 20, b""), "pax header has"),
        (raw(b'g', "n", 2 << 20, b""), "pax header has"),
        (pax(&[("path", &"a".repeat(5000))]).into_iter().chain(raw(b'0', "n", 0, b"")).collect(), "name has 5000"),
        ([raw(b'0', "n", 0, b"")].concat().repeat(101), "more than 100 entries"),
        (raw(b'x', "n", 0, b"").repeat(400), "more than 100 entries"),
    ];
    for (bytes, message) in rows {
        let error = all(&bytes).unwrap_err().to_string();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
}

#[test]
fn damaged_and_unsupported_streams_are_refused() {
    let mut sum = raw(b'0', "n", 0, b"");
    sum[0] = b'm';
    assert!(matches!(all(&sum), Err(TarError::Header { number: 1, field: "checksum" })));
    assert!(matches!(all(&raw(b'0', "n", 1000, b"short")), Err(TarError::Read(_))));
    assert!(matches!(all(&raw(b'0', "n", 0, b"")[..100]), Err(TarError::Read(_))));
    assert!(matches!(all(&raw(b'S', "n", 0, b"")), Err(TarError::Unsupported { kind: 'S', .. })));
    let sparse = [pax(&[("GNU.sparse.major", "1")]), raw(b'0', "n", 0, b"")].concat();
    assert!(matches!(all(&sparse), Err(TarError::Unsupported { .. })));
    assert!(matches!(all(&[pax(&[("size", "-1")]), raw(b'0', "n", 0, b"")].concat()), Err(TarError::Header { .. })));
    // The end of the stream between entries is an end; so are zero blocks.
    assert_eq!(all(&raw(b'0', "n", 0, b"")).unwrap().len(), 1);
    assert_eq!(all(&[raw(b'0', "n", 0, b""), vec![0; 1024], raw(b'0', "m", 0, b"")].concat()).unwrap().len(), 1);
}
