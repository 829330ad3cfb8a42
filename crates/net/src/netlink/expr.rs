//! The expressions of nf_tables rules that the table of this crate needs.
//!
//! Registers: 1 to 4 have 16 bytes; 8 to 23 are the same memory in pieces of 4. A concatenation is loaded into consecutive pieces.

use super::attr::MessageWriter;

/// The first register of 16 bytes.
pub(crate) const REG: u32 = 1;
/// The second piece of 4 bytes: what follows an IPv4 address or a number in [`REG`].
pub(crate) const REG_AFTER_4: u32 = 9;
/// The third piece.
pub(crate) const REG_AFTER_8: u32 = 10;
/// What follows an IPv6 address in [`REG`].
pub(crate) const REG_AFTER_16: u32 = 2;
/// The piece after that.
pub(crate) const REG_AFTER_20: u32 = 13;

/// `enum nft_meta_keys`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MetaKey {
    InterfaceIn = 6,
    InterfaceOut = 7,
    Family = 15,
    Protocol = 16,
}

/// What happens to a packet when a rule matches.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Drop,
    Return,
    Jump(&'static str),
}

/// Where a payload expression's offset begins (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum PayloadBase {
    Network = 1,
    Transport = 2,
}

/// One expression of a rule. A rule matches if no expression breaks it off.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// Loads a property of the packet.
    Meta { key: MetaKey, to: u32 },
    /// Loads bytes of the packet.
    Payload { base: PayloadBase, offset: u32, len: u32, to: u32 },
    /// Breaks off unless the register equals (or, negated, differs from) the value.
    Cmp { equal: bool, value: Vec<u8> },
    /// Masks the register.
    Mask { mask: Vec<u8> },
    /// Loads the connection's status bits.
    CtStatus,
    /// Loads the type of the destination address.
    DestinationType,
    /// Replaces the key in the register by the map's value; breaks off if there is none.
    Lookup { map: &'static str },
    /// Translates the destination: address in [`REG`], port in `port`.
    Dnat { family: u32, port: u32 },
    /// Translates the source to the address of the outgoing interface.
    Masquerade { fully_random: bool },
    /// Ends the rule.
    Verdict(Verdict),
}

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const FULLY_RANDOM: u32 = 1 << 4;
const LIST_ELEM: u16 = 1;
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

impl Expr {
    /// Appends the expression to a list of expressions.
    pub(crate) fn write(&self, writer: &mut MessageWriter) {
        writer.nest(LIST_ELEM, |w| {
            w.string(EXPR_NAME, self.name());
            w.nest(EXPR_DATA, |w| self.write_data(w));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Expr::Meta { .. } => "meta",
            Expr::Payload { .. } => "payload",
            Expr::Cmp { .. } => "cmp",
            Expr::Mask { .. } => "bitwise",
            Expr::CtStatus => "ct",
            Expr::DestinationType => "fib",
            Expr::Lookup { .. } => "lookup",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade { .. } => "masq",
            Expr::Verdict(_) => "immediate",
        }
    }

    /// The attributes' numbers are those of `linux/netfilter/nf_tables.h`, in its order.
    fn write_data(&self, w: &mut MessageWriter) {
        match self {
            Expr::Meta { key, to } => {
                w.be32(1, *to);
                w.be32(2, *key as u32);
            }
            Expr::Payload { base, offset, len, to } => {
                w.be32(1, *to);
                w.be32(2, *base as u32);
                w.be32(3, *offset);
                w.be32(4, *len);
            }
            Expr::Cmp { equal, value } => {
                w.be32(1, REG);
                w.be32(2, u32::from(!equal));
                w.nest(3, |w| w.attr(DATA_VALUE, value));
            }
            Expr::Mask { mask } => {
                w.be32(1, REG);
                w.be32(2, REG);
                w.be32(3, u32::try_from(mask.len()).expect("a mask has at most 16 bytes"));
                w.nest(4, |w| w.attr(DATA_VALUE, mask));
                w.nest(5, |w| w.attr(DATA_VALUE, &vec![0; mask.len()]));
            }
            Expr::CtStatus => {
                w.be32(1, REG);
                w.be32(2, 2);
            }
            Expr::DestinationType => {
                w.be32(1, REG);
                w.be32(2, 3);
                w.be32(3, 2);
            }
            Expr::Lookup { map } => {
                w.string(1, map);
                w.be32(2, REG);
                w.be32(3, REG);
            }
            Expr::Dnat { family, port } => {
                w.be32(1, 1);
                w.be32(2, *family);
                w.be32(3, REG);
                w.be32(5, *port);
            }
            Expr::Masquerade { fully_random } => {
                if *fully_random {
                    w.be32(1, FULLY_RANDOM);
                }
            }
            Expr::Verdict(verdict) => write_verdict(verdict, w),
        }
    }
}

/// The verdict register is 0; the codes are negative except drop.
fn write_verdict(verdict: &Verdict, w: &mut MessageWriter) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Jump(chain) => (-3i32, Some(chain)),
        Verdict::Return => (-5, None),
    };
    w.be32(1, 0);
    w.nest(2, |w| {
        w.nest(DATA_VERDICT, |w| {
            w.attr(1, &code.to_be_bytes());
            if let Some(chain) = chain {
                w.string(2, chain);
            }
        });
    });
}
