//! nf_tables: batches of changes that the kernel applies all or not at all, and dumps.

use rustix::net::netlink;

use super::NetlinkError;
use super::attr::{MessageWriter, attributes, find, text};
use super::expr::Expr;
use super::socket::{ACK, APPEND, CREATE, DUMP, EXCL, NetlinkSocket, REQUEST, error_code, is_error, refused};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const GETRULE: u16 = 7;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const GETSETELEM: u16 = 13;
const DELSETELEM: u16 = 14;
/// `NFNL_MSG_BATCH_BEGIN` and `_END`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFPROTO_INET`: IPv4 and IPv6 in one table.
const INET: u8 = 1;
/// `NFT_SET_MAP`.
const SET_IS_MAP: u32 = 8;
/// Size of `struct nfgenmsg`.
const FAMILY_HEADER_LEN: usize = 4;
const TABLE_NAME: u16 = 1;
const TABLE_USERDATA: u16 = 6;
const RULE_CHAIN: u16 = 2;
const ELEMENT_LIST: u16 = 3;
const ELEMENT: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_USERDATA: u16 = 6;
const DATA_VALUE: u16 = 1;
/// libnftnl's type of a comment in the user data of an element: `nft list` shows it.
const USERDATA_COMMENT: u8 = 0;
/// libnftnl's longest comment, with its NUL (`NFTNL_UDATA_COMMENT_MAXLEN`).
const COMMENT_LEN_MAX: usize = 128;

/// A chain called by the kernel at one of its hooks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    /// `nat` or `filter`.
    pub(crate) kind: &'static str,
    /// `NF_INET_*`.
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// The types of a map as `nft` numbers them, and their sizes in bytes with each part padded to 4.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapType {
    pub(crate) key_type: u32,
    pub(crate) key_len: u32,
    pub(crate) data_type: u32,
    pub(crate) data_len: u32,
}

/// An element of a map.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct MapElement {
    pub(crate) map: &'static str,
    pub(crate) key: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// Shown by `nft list`; made by [`cut_comment`].
    pub(crate) comment: String,
}

/// The part of a text that fits into a comment. What the kernel returns must equal what was written.
pub(crate) fn cut_comment(text: &str) -> String {
    let mut end = text.len().min(COMMENT_LEN_MAX - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Changes of one table, applied together.
#[derive(Debug)]
pub(crate) struct Batch {
    table: String,
    writer: MessageWriter,
    /// What each message does, for errors. The sequence number of operation `i` is `i + 1`.
    operations: Vec<String>,
}

impl Batch {
    pub(crate) fn new(table: &str) -> Self {
        let mut writer = MessageWriter::default();
        writer.message(BATCH_BEGIN, REQUEST, 0, |w| w.raw(&[0, 0, 0, 10]));
        Batch { table: table.to_owned(), writer, operations: vec![] }
    }

    pub(crate) fn add_table(&mut self, userdata: &[u8]) {
        let table = self.table.clone();
        self.push(NEWTABLE, CREATE, format!("add table inet {table}"), |w| {
            w.string(TABLE_NAME, &table);
            w.be32(2, 0);
            w.attr(TABLE_USERDATA, userdata);
        });
    }

    pub(crate) fn delete_table(&mut self) {
        let table = self.table.clone();
        self.push(DELTABLE, 0, format!("delete table inet {table}"), |w| w.string(TABLE_NAME, &table));
    }

    pub(crate) fn add_chain(&mut self, name: &str, hook: Option<Hook>) {
        let table = self.table.clone();
        self.push(NEWCHAIN, CREATE, format!("add chain inet {table} {name}"), |w| {
            w.string(1, &table);
            w.string(3, name);
            if let Some(hook) = hook {
                w.string(7, hook.kind);
                w.be32(5, 1);
                w.nest(4, |w| {
                    w.be32(1, hook.number);
                    w.attr(2, &hook.priority.to_be_bytes());
                });
            }
        });
    }

    pub(crate) fn add_map(&mut self, name: &str, types: MapType) {
        let table = self.table.clone();
        let id = u32::try_from(self.operations.len()).expect("a batch is bounded") + 1;
        self.push(NEWSET, CREATE, format!("add map inet {table} {name}"), |w| {
            w.string(1, &table);
            w.string(2, name);
            w.be32(3, SET_IS_MAP);
            w.be32(4, types.key_type);
            w.be32(5, types.key_len);
            w.be32(6, types.data_type);
            w.be32(7, types.data_len);
            w.be32(10, id);
        });
    }

    pub(crate) fn add_rule(&mut self, chain: &str, rule: &[Expr]) {
        let table = self.table.clone();
        self.push(NEWRULE, CREATE | APPEND, format!("add rule inet {table} {chain}"), |w| {
            w.string(1, &table);
            w.string(RULE_CHAIN, chain);
            w.nest(4, |w| rule.iter().for_each(|expr| expr.write(w)));
        });
    }

    /// Adds an element; an existing one with the same key fails the batch with `EEXIST`.
    pub(crate) fn add_element(&mut self, element: &MapElement) {
        self.element(NEWSETELEM, CREATE | EXCL, "add", element);
    }

    /// Deletes an element; a missing one fails the batch with `ENOENT`.
    pub(crate) fn delete_element(&mut self, element: &MapElement) {
        self.element(DELSETELEM, 0, "delete", element);
    }

    fn element(&mut self, kind: u16, flags: u16, verb: &str, element: &MapElement) {
        let table = self.table.clone();
        let operation = format!("{verb} element inet {table} {} ({})", element.map, element.comment);
        self.push(kind, flags, operation, |w| {
            w.string(1, &table);
            w.string(2, element.map);
            w.nest(ELEMENT_LIST, |w| {
                w.nest(ELEMENT, |w| {
                    w.nest(ELEMENT_KEY, |w| w.attr(DATA_VALUE, &element.key));
                    w.nest(ELEMENT_DATA, |w| w.attr(DATA_VALUE, &element.data));
                    if !element.comment.is_empty() && kind == NEWSETELEM {
                        w.attr(ELEMENT_USERDATA, &comment_userdata(&element.comment));
                    }
                });
            });
        });
    }

    fn push(&mut self, message: u16, flags: u16, operation: String, body: impl FnOnce(&mut MessageWriter)) {
        self.operations.push(operation);
        let sequence = u32::try_from(self.operations.len()).expect("a batch is bounded");
        self.writer.message(SUBSYSTEM << 8 | message, REQUEST | flags, sequence, |w| {
            w.raw(&[INET, 0, 0, 0]);
            body(w);
        });
    }

    /// Sends the batch. The first refused operation is reported; nothing is changed then.
    pub(crate) fn commit(mut self) -> Result<(), NetlinkError> {
        let Ok(last @ 1..) = u32::try_from(self.operations.len()) else { return Ok(()) };
        // An acknowledgement for each message would overflow the receive buffer. Errors are always sent, so that an
        // acknowledgement of the last operation is enough.
        self.writer.add_flags_to_last(ACK);
        self.writer.message(BATCH_END, REQUEST, last + 1, |w| w.raw(&[0, 0, 0, 10]));
        let mut socket = NetlinkSocket::open(Some(netlink::NETFILTER))?;
        socket.send(self.writer.as_bytes())?;
        socket.receive("nf_tables batch", |frame| {
            if !is_error(&frame) {
                return Ok(false);
            }
            match error_code(frame.body) {
                None => Err(NetlinkError::Malformed { operation: "nf_tables batch".to_owned() }),
                Some(0) => Ok(frame.sequence == last),
                Some(code) => {
                    // The messages that begin and end the batch have numbers of their own: they stand for the commit.
                    let position = (frame.sequence as usize).wrapping_sub(1);
                    let operation = self.operations.get(position).cloned();
                    let operation = operation.unwrap_or_else(|| format!("commit table inet {}", self.table));
                    Err(refused(operation, position, code))
                }
            }
        })
    }
}

/// User data as libnftnl writes it: type, length, value.
pub(crate) fn comment_userdata(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).expect("cut_comment bounds it");
    let mut bytes = vec![USERDATA_COMMENT, length];
    bytes.extend_from_slice(comment.as_bytes());
    bytes.push(0);
    bytes
}

/// The user data of a table; `None` if there is no such table.
pub(crate) fn table_userdata(table: &str) -> Result<Option<Vec<u8>>, NetlinkError> {
    let mut socket = NetlinkSocket::open(Some(netlink::NETFILTER))?;
    let sequence = socket.next_sequence();
    let mut writer = MessageWriter::default();
    writer.message(SUBSYSTEM << 8 | GETTABLE, REQUEST | ACK, sequence, |w| {
        w.raw(&[INET, 0, 0, 0]);
        w.string(TABLE_NAME, table);
    });
    match socket.request(&format!("get table inet {table}"), sequence, writer.as_bytes()) {
        Ok(answers) => {
            let found = answers.first().and_then(|(_, body)| find(body.get(FAMILY_HEADER_LEN..)?, TABLE_USERDATA));
            Ok(Some(found.unwrap_or_default().to_vec()))
        }
        Err(e) if e.errno() == Some(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The chains of the table's rules, one entry per rule, in order.
pub(crate) fn rule_chains(table: &str) -> Result<Vec<String>, NetlinkError> {
    let mut chains = vec![];
    for (_, body) in dump(GETRULE, &format!("list rules of table inet {table}"), |w| w.string(1, table))? {
        let attributes = body.get(FAMILY_HEADER_LEN..).unwrap_or_default();
        if find(attributes, 1).and_then(text) == Some(table) {
            chains.extend(find(attributes, RULE_CHAIN).and_then(text).map(str::to_owned));
        }
    }
    Ok(chains)
}

/// The elements of a map.
pub(crate) fn elements(table: &str, map: &'static str) -> Result<Vec<MapElement>, NetlinkError> {
    let answers = dump(GETSETELEM, &format!("list map inet {table} {map}"), |w| {
        w.string(1, table);
        w.string(2, map);
    })?;
    let mut found = vec![];
    for (_, body) in answers {
        let list = body.get(FAMILY_HEADER_LEN..).and_then(|body| find(body, ELEMENT_LIST)).unwrap_or_default();
        for (_, element) in attributes(list) {
            let value = |kind| find(element, kind).and_then(|value| find(value, DATA_VALUE)).map(<[u8]>::to_vec);
            if let (Some(key), Some(data)) = (value(ELEMENT_KEY), value(ELEMENT_DATA)) {
                let comment = find(element, ELEMENT_USERDATA).and_then(comment_of).unwrap_or_default();
                found.push(MapElement { map, key, data, comment });
            }
        }
    }
    Ok(found)
}

/// The comment in user data.
pub(crate) fn comment_of(userdata: &[u8]) -> Option<String> {
    match userdata {
        [USERDATA_COMMENT, _, rest @ ..] => text(rest).map(str::to_owned),
        _ => None,
    }
}

fn dump(message: u16, operation: &str, body: impl Fn(&mut MessageWriter)) -> Result<Vec<(u16, Vec<u8>)>, NetlinkError> {
    NetlinkSocket::open(Some(netlink::NETFILTER))?.dump(operation, |sequence| {
        let mut writer = MessageWriter::default();
        writer.message(SUBSYSTEM << 8 | message, REQUEST | DUMP, sequence, |w| {
            w.raw(&[INET, 0, 0, 0]);
            body(w);
        });
        writer.as_bytes().to_vec()
    })
}
