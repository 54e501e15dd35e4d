//! A caller who was given several addresses of a server, or a unix socket: its `:authority` is no host.
//!
//! ```text
//! ipv4:10.0.0.1:8081,10.0.0.2:8081  ─▶  :authority 10.0.0.1:8081,10.0.0.2:8081
//! unix:/run/broker.sock             ─▶  :authority %2Frun%2Fbroker.sock
//! ```
//!
//! gRPC's core, so Python and C++, sends that, and its servers take it. HTTP/2 here refuses it. So what makes
//! it two hosts, behind the first comma, and each percent sign become hyphens on their way in: as many bytes
//! as before, so both ends count their tables of headers alike. The first call of a connection shows whether
//! there are any; where there are none nothing is looked at any more. A value that is coded (Huffman) passes
//! as it is: gRPC's core codes none.

const PREFACE_BYTES: usize = 24;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

const CODED: u8 = 0x80;
const NAME: &[u8] = b":authority";
/// Its place in the static table of HPACK.
const INDEX: usize = 1;
/// No header is longer, nor its index higher.
const NUMBER_BITS_MAX: u32 = 28;

/// Looks at what a connection reads and repairs it.
pub(crate) struct Repair {
    frame: Frame,
    block: Block,
    has_call: bool,
    /// That there was something to repair; None until the first call showed it.
    is_needed: Option<bool>,
}

/// Where in the frames the next byte is.
enum Frame {
    Head { read: usize, length: usize, kind: u8, flags: u8 },
    PadLength { length: usize, flags: u8 },
    Headers { skip: usize, left: usize, padding: usize },
    Other { left: usize },
}

/// Where in a header block, RFC 7541 section 6.
#[derive(Clone, Copy)]
enum Block {
    Field,
    Number { so_far: usize, shift: u32, of: Number },
    NameLength,
    Name { left: usize, matched: Option<usize> },
    ValueLength { is_ours: bool },
    Value { left: usize, is_ours: bool, after_comma: bool, is_odd: bool },
}

/// What a number is for.
#[derive(Clone, Copy)]
enum Number {
    /// An index or a size that brings nothing with it.
    Alone,
    Index,
    Name {
        is_coded: bool,
    },
    Value {
        is_ours: bool,
    },
}

impl Repair {
    pub(crate) fn new() -> Self {
        Self {
            frame: Frame::Other { left: PREFACE_BYTES },
            block: Block::Field,
            has_call: false,
            is_needed: None,
        }
    }

    /// Bytes of the connection, in their order, none left out.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.is_needed != Some(false) {
            let (count, is_block) = match self.frame {
                Frame::Headers { skip: 0, left, .. } => (left, true),
                Frame::Headers { skip, .. } => (skip, false),
                Frame::Other { left } => (left, false),
                Frame::Head { .. } | Frame::PadLength { .. } => (1, false),
            };
            let (now, later) = rest.split_at_mut(count.min(rest.len()));
            if is_block {
                for byte in now.iter_mut() {
                    self.header_byte(byte);
                }
            }
            self.passed(now.len(), now.first().copied().unwrap_or_default());
            rest = later;
        }
    }

    /// So many bytes of the frame, or the one byte of its head, were read.
    fn passed(&mut self, count: usize, byte: u8) {
        self.frame = match self.frame {
            Frame::Head { read, length, kind, flags } => self.head_byte(read, length, kind, flags, byte),
            Frame::PadLength { length, flags } => headers(length.saturating_sub(1), flags, usize::from(byte)),
            Frame::Headers { skip, left, padding } => {
                let (skipped, read) = if skip > 0 { (count, 0) } else { (0, count) };
                ended(Frame::Headers { skip: skip - skipped, left: left - read, padding })
            }
            Frame::Other { left } => ended(Frame::Other { left: left - count }),
        };
    }

    /// Three bytes of length, one of kind, one of flags, four of the stream.
    fn head_byte(&mut self, read: usize, length: usize, kind: u8, flags: u8, byte: u8) -> Frame {
        let read = read + 1;
        match read {
            1..=3 => Frame::Head { read, length: length << 8 | usize::from(byte), kind, flags },
            4 => Frame::Head { read, length, kind: byte, flags },
            5 => Frame::Head { read, length, kind, flags: byte },
            6..=8 => Frame::Head { read, length, kind, flags },
            _ if kind == HEADERS => {
                if std::mem::replace(&mut self.has_call, true) {
                    self.is_needed = Some(self.is_needed == Some(true));
                }
                self.block = Block::Field;
                if flags & PADDED != 0 && length > 0 {
                    Frame::PadLength { length, flags }
                } else {
                    headers(length, flags, 0)
                }
            }
            _ if kind == CONTINUATION => headers(length, 0, 0),
            _ => ended(Frame::Other { left: length }),
        }
    }

    fn header_byte(&mut self, byte: &mut u8) {
        self.block = match self.block {
            Block::Field => match *byte {
                0x80.. => self.number(*byte, 0x7f, Number::Alone),
                0x40.. => self.number(*byte, 0x3f, Number::Index),
                0x20.. => self.number(*byte, 0x1f, Number::Alone),
                _ => self.number(*byte, 0x0f, Number::Index),
            },
            Block::Number { so_far, shift, of } => {
                let so_far = so_far.saturating_add(usize::from(*byte & 0x7f) << shift);
                if *byte & 0x80 == 0 {
                    self.counted(so_far, of)
                } else if shift < NUMBER_BITS_MAX {
                    Block::Number { so_far, shift: shift + 7, of }
                } else {
                    self.give_up()
                }
            }
            Block::NameLength => self.number(*byte, 0x7f, Number::Name { is_coded: *byte & CODED != 0 }),
            Block::Name { left, matched } => {
                let matched = matched.filter(|at| NAME.get(*at) == Some(byte)).map(|at| at + 1);
                if left > 1 {
                    Block::Name { left: left - 1, matched }
                } else {
                    Block::ValueLength { is_ours: matched == Some(NAME.len()) }
                }
            }
            Block::ValueLength { is_ours } => {
                let is_ours = is_ours && *byte & CODED == 0;
                self.number(*byte, 0x7f, Number::Value { is_ours })
            }
            Block::Value { left, is_ours, after_comma, is_odd } => {
                let after_comma = after_comma || (is_ours && *byte == b',');
                let is_odd = is_odd || after_comma || (is_ours && *byte == b'%');
                if (is_ours && *byte == b'%') || (after_comma && b":[]@/?#".contains(byte)) {
                    *byte = b'-';
                }
                self.value(left - 1, is_ours, after_comma, is_odd)
            }
        };
    }

    fn number(&mut self, byte: u8, most: u8, of: Number) -> Block {
        let small = usize::from(byte & most);
        if byte & most == most {
            Block::Number { so_far: small, shift: 0, of }
        } else {
            self.counted(small, of)
        }
    }

    fn counted(&mut self, number: usize, of: Number) -> Block {
        match of {
            Number::Alone => Block::Field,
            Number::Index if number == 0 => Block::NameLength,
            Number::Index => Block::ValueLength { is_ours: number == INDEX },
            Number::Name { .. } if number == 0 => Block::ValueLength { is_ours: false },
            Number::Name { is_coded } => {
                Block::Name { left: number, matched: if is_coded { None } else { Some(0) } }
            }
            Number::Value { is_ours } => self.value(number, is_ours, false, false),
        }
    }

    fn value(&mut self, left: usize, is_ours: bool, after_comma: bool, is_odd: bool) -> Block {
        if left > 0 {
            return Block::Value { left, is_ours, after_comma, is_odd };
        }
        if is_ours && self.is_needed.is_none() {
            self.is_needed = Some(is_odd);
        }
        Block::Field
    }

    /// What cannot be read here HTTP/2 refuses.
    fn give_up(&mut self) -> Block {
        self.is_needed = Some(false);
        Block::Field
    }
}

fn headers(length: usize, flags: u8, padding: usize) -> Frame {
    let skip = if flags & PRIORITY != 0 { PRIORITY_BYTES.min(length) } else { 0 };
    let padding = padding.min(length - skip);
    ended(Frame::Headers { skip, left: length - skip - padding, padding })
}

/// What comes next, if this was all of it.
fn ended(frame: Frame) -> Frame {
    let next = Frame::Head { read: 0, length: 0, kind: 0, flags: 0 };
    match frame {
        Frame::Headers { skip: 0, left: 0, padding: 0 } | Frame::Other { left: 0 } => next,
        Frame::Headers { skip: 0, left: 0, padding } => Frame::Other { left: padding },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const TWO: &str = "10.0.0.1:81,10.0.0.2:82";
    const REPAIRED: &str = "10.0.0.1:81,10.0.0.2-82";

    fn literal(first: &[u8], value: &str) -> Vec<u8> {
        [first, &[u8::try_from(value.len()).unwrap_or_default()], value.as_bytes()].concat()
    }

    /// As gRPC's core writes it.
    fn by_name(value: &str) -> Vec<u8> {
        literal(b"\x40\x0a:authority", value)
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn passed(frames: &[Vec<u8>], piece: usize) -> Vec<u8> {
        let mut bytes = [vec![b'.'; PREFACE_BYTES], frames.concat()].concat();
        let mut repair = Repair::new();
        bytes.chunks_mut(piece).for_each(|piece| repair.pass(piece));
        bytes.split_off(PREFACE_BYTES)
    }

    fn assert_repaired(kind_and_flags: (u8, u8), before: &[u8], field: fn(&str) -> Vec<u8>, after: &[u8]) {
        let (kind, flags) = kind_and_flags;
        let settings = frame(4, 0, &[0; 6]);
        let whole = |value| [before, b"\x83\x86", &field(value), after].concat();
        let again = |value| frame(HEADERS, 4, &field(value));
        for piece in [1, 2, 7, 1000] {
            for (value, repaired) in [
                (TWO, REPAIRED),
                ("[::1]:81,[::2]:82", "[::1]:81,---2--82"),
                ("%2Frun%2Fa,b", "-2Frun-2Fa,b"),
            ] {
                let given = [settings.clone(), frame(kind, flags, &whole(value)), again(value)];
                let expected = [settings.clone(), frame(kind, flags, &whole(repaired)), again(repaired)];
                assert_eq!(passed(&given, piece), expected.concat());
            }
        }
    }

    #[test]
    fn of_several_addresses_one_is_left_in_every_way_to_write_them() {
        assert_repaired((HEADERS, 4), b"", by_name, b"\xff\x01");
        assert_repaired((HEADERS, 4), b"", |value| literal(b"\x41", value), b"\x3f\xe1\x1f");
        assert_repaired((HEADERS, 4), b"", |value| literal(b"\x01", value), b"\x10\0\x01:");
        assert_repaired((HEADERS, 0x24), b"\0\0\0\0\x10", by_name, b"\x0f\x80\x01\x01:");
        assert_repaired((HEADERS, 0x0c), b"\x03", by_name, b"\x40\x01,");
        assert_repaired((HEADERS, 0x2c), b"\x02\0\0\0\0\x10", by_name, b"\x41\x05");
    }

    #[test]
    fn one_address_and_other_headers_pass_as_they_are() {
        let other = literal(b"\x40\x05:path", "/a,b:c");
        let longer = literal(b"\x40\x0b:authoritys", TWO);
        let coded = [b"\x41\x83".as_slice(), b",:,"].concat();
        for field in [by_name("10.0.0.1:81"), other.clone(), longer, coded] {
            let frames = [frame(HEADERS, 4, &field), frame(HEADERS, 4, &other)];
            assert_eq!(passed(&frames, 3), frames.concat());
        }
        // The first call decided.
        let frames = [frame(HEADERS, 4, &by_name("one")), frame(HEADERS, 4, &by_name(TWO))];
        assert_eq!(passed(&frames, 1000), frames.concat());
        let data = [frame(0, 0, &by_name(TWO)), frame(HEADERS, 4, &by_name("one"))];
        assert_eq!(passed(&data, 1000), data.concat());
    }

    #[test]
    fn after_the_first_call_nothing_is_looked_at_where_it_had_no_comma() {
        for field in [by_name("one"), b"\x41\x83,:,".to_vec(), b"\x83".to_vec()] {
            let mut bytes =
                [vec![b'.'; PREFACE_BYTES], frame(HEADERS, 4, &field), frame(HEADERS, 4, &field)].concat();
            let mut repair = Repair::new();
            repair.pass(&mut bytes);
            assert_eq!(repair.is_needed, Some(false));
        }
    }

    #[test]
    fn a_block_may_go_on_in_another_frame() {
        let (given, expected) = (by_name(TWO), by_name(REPAIRED));
        for cut in 1..given.len() {
            let split = |block: &[u8]| {
                let (first, rest) = block.split_at(cut);
                [frame(HEADERS, 0, first), frame(CONTINUATION, 4, rest)].concat()
            };
            assert_eq!(passed(&[split(&given)], 1000), split(&expected));
        }
    }

    #[test]
    fn a_number_without_end_is_left_to_http2() {
        let frames = [frame(HEADERS, 4, &[0x7f; 1]), frame(CONTINUATION, 4, &[0xff; 40])];
        assert_eq!(passed(&frames, 5), frames.concat());
    }

    fn part_of_a_block() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(by_name(TWO)),
            Just(literal(b"\x41", TWO)),
            Just(b"\x83".to_vec()),
            Just(b"\x7f\xff".to_vec()),
            vec(any::<u8>(), 0..8),
        ]
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_changes_nothing_and_only_marks_become_hyphens(
            parts in vec((0u8..12, any::<u8>(), vec(part_of_a_block(), 0..5)), 0..6),
            piece in 1usize..40,
        ) {
            let frames: Vec<_> = parts.iter().map(|(kind, flags, of)| frame(*kind, *flags, &of.concat())).collect();
            let whole = passed(&frames, usize::MAX);
            prop_assert_eq!(&passed(&frames, piece), &whole);
            for (before, after) in frames.concat().iter().zip(&whole) {
                prop_assert!(before == after || (b":[]@%/?#".contains(before) && *after == b'-'));
            }
        }
    }
}
