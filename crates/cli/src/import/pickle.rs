//! Pickles, as data: nothing is executed and no object is made.
//!
//! Values lie in one arena and name each other by number, so that what a file shares is shared here
//! too, and what is read takes memory in proportion to the file whatever it says.

use std::collections::HashMap;

/// Names a value of a [`Pickle`].
pub(crate) type Id = u32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'f> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'f str),
    Bytes(&'f [u8]),
    /// Lists, tuples and sets.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
}

/// What a file holds.
#[derive(Debug, Default)]
pub(crate) struct Pickle<'f> {
    values: Vec<Value<'f>>,
    root: Id,
}

type Read<T> = Result<T, String>;

/// The most values of a pickle: some gigabytes in memory.
const MOST_VALUES: usize = 1 << 26;

impl<'f> Pickle<'f> {
    /// Reads a pickle of any protocol up to 5.
    pub(crate) fn read(bytes: &'f [u8]) -> Read<Self> {
        let mut machine = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        let root = machine.run()?;
        Ok(Self { values: machine.values, root })
    }

    pub(crate) fn root(&self) -> Id {
        self.root
    }

    pub(crate) fn value(&self, id: Id) -> &Value<'f> {
        &self.values[id as usize]
    }

    /// The value of a key; `None` where the value is no dictionary or has no such key.
    pub(crate) fn get(&self, id: Id, key: &str) -> Option<Id> {
        match self.value(id) {
            Value::Dict(pairs) => {
                // The last of equal keys counts.
                let found = pairs.iter().rev();
                found.clone().find(|pair| *self.value(pair.0) == Value::Text(key)).map(|p| p.1)
            }
            _ => None,
        }
    }

    pub(crate) fn list(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn text(&self, id: Id) -> Option<&'f str> {
        match self.value(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, id: Id) -> Option<u64> {
        match *self.value(id) {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

/// The stack machine that a pickle is a program of, without the instructions that run code.
struct Machine<'f> {
    bytes: &'f [u8],
    at: usize,
    values: Vec<Value<'f>>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'f> Machine<'f> {
    fn run(&mut self) -> Read<Id> {
        loop {
            let at = self.at;
            let code = self.byte()?;
            if code == b'.' {
                return self.pop();
            }
            self.step(code).map_err(|reason| format!("pickle, byte {at}: {reason}"))?;
        }
    }

    fn step(&mut self, code: u8) -> Read<()> {
        match code {
            0x80 => match self.byte()? {
                0..=5 => Ok(()),
                version => Err(format!("protocol {version}: at most 5 is known")),
            },
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(drop),
            b'1' => self.items().map(drop),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
                Ok(())
            }
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | b'I' | b'L' | 0x8a | 0x8b => self.integer(code),
            b'F' | b'G' => self.float(code),
            b'X' | 0x8c | 0x8d | b'V' => self.unicode(code),
            b'B' | b'C' | 0x8e | b'U' | b'T' => self.raw(code),
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'a' | b'e' | 0x8f..=0x91 => self.list(code),
            b'}' | b'd' | b's' | b'u' => self.dict(code),
            b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.memo(code),
            _ => Err(format!(
                "instruction {code:#04x} is not for data: a snapshot holds nothing that makes objects \
                 or runs code"
            )),
        }
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, len: u64) -> Read<&'f [u8]> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let part = end.and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| "the file ends in a value".to_owned())?;
        self.at += part.len();
        Ok(part)
    }

    fn line(&mut self) -> Read<&'f str> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n');
        let line = self.take(len.ok_or("the file ends in a line")? as u64)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| "a text that is not UTF-8".to_owned())
    }

    /// A number of `len` bytes, the lowest first.
    fn little(&mut self, len: u64) -> Read<u64> {
        let bytes = self.take(len)?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn push(&mut self, value: Value<'f>) -> Read<()> {
        if self.values.len() >= MOST_VALUES {
            return Err("too many values".to_owned());
        }
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    /// What lies above the last mark is out of reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Read<Id> {
        let reachable = self.stack.len() > self.floor();
        let top = self.stack.last().filter(|_| reachable);
        top.copied().ok_or_else(|| "a value is missing".to_owned())
    }

    fn pop(&mut self) -> Read<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Everything above the last mark.
    fn items(&mut self) -> Read<Vec<Id>> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn integer(&mut self, code: u8) -> Read<()> {
        let number = match code {
            b'J' => i64::from(self.little(4)? as u32 as i32),
            b'K' => i64::from(self.byte()?),
            b'M' => self.little(2)? as i64,
            b'I' | b'L' => {
                let line = self.line()?.trim_end_matches('L');
                match line {
                    "00" | "01" => return self.push(Value::Bool(line == "01")),
                    _ => line.parse().map_err(|_| format!("'{line}' is not a number"))?,
                }
            }
            _ => {
                let len = if code == 0x8a { self.byte()?.into() } else { self.little(4)? };
                let bytes = self.take(len)?;
                let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
                let fill = if negative { 0xff } else { 0 };
                let (low, high) = bytes.split_at(bytes.len().min(8));
                if high.iter().any(|&byte| byte != fill) {
                    return Err("a number above 64 bits".to_owned());
                }
                let mut whole = [fill; 8];
                whole[..low.len()].copy_from_slice(low);
                i64::from_le_bytes(whole)
            }
        };
        self.push(Value::Int(number))
    }

    fn float(&mut self, code: u8) -> Read<()> {
        let number = if code == b'F' {
            let line = self.line()?;
            line.parse().map_err(|_| format!("'{line}' is not a number"))?
        } else {
            let bytes = self.take(8)?;
            f64::from_be_bytes(bytes.try_into().map_err(|_| "a short number")?)
        };
        self.push(Value::Float(number))
    }

    fn unicode(&mut self, code: u8) -> Read<()> {
        let text = match code {
            b'V' => return self.line().and_then(|line| self.push(Value::Text(line))),
            b'X' => self.little(4)?,
            0x8c => self.byte()?.into(),
            _ => self.little(8)?,
        };
        let text = self.take(text)?;
        let text = std::str::from_utf8(text).map_err(|_| "a text that is not UTF-8")?;
        self.push(Value::Text(text))
    }

    fn raw(&mut self, code: u8) -> Read<()> {
        let len = match code {
            b'B' | b'T' => self.little(4)?,
            b'C' | b'U' => self.byte()?.into(),
            _ => self.little(8)?,
        };
        let bytes = self.take(len)?;
        self.push(Value::Bytes(bytes))
    }

    fn list(&mut self, code: u8) -> Read<()> {
        match code {
            b')' | b']' | 0x8f => self.push(Value::List(Vec::new())),
            b't' | b'l' | 0x91 => {
                let items = self.items()?;
                self.push(Value::List(items))
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let mut items = (0..count).map(|_| self.pop()).collect::<Read<Vec<_>>>()?;
                items.reverse();
                self.push(Value::List(items))
            }
            _ => {
                let items = if code == b'a' { vec![self.pop()?] } else { self.items()? };
                let list = self.top()?;
                match &mut self.values[list as usize] {
                    Value::List(known) => known.extend(items),
                    _ => return Err("appended to what is no list".to_owned()),
                }
                Ok(())
            }
        }
    }

    fn dict(&mut self, code: u8) -> Read<()> {
        let items = match code {
            b'}' => return self.push(Value::Dict(Vec::new())),
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.items()?,
        };
        if items.len() % 2 != 0 {
            return Err("a key without a value".to_owned());
        }
        let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        if code == b'd' {
            let pairs = pairs.collect();
            return self.push(Value::Dict(pairs));
        }
        let dict = self.top()?;
        match &mut self.values[dict as usize] {
            Value::Dict(known) => known.extend(pairs),
            _ => return Err("a key set in what is no dictionary".to_owned()),
        }
        Ok(())
    }

    fn memo(&mut self, code: u8) -> Read<()> {
        let text = |line: &str| line.parse::<u32>().map_err(|_| format!("'{line}' is no number"));
        let index = match code {
            0x94 => self.memo.len() as u32,
            b'q' | b'h' => self.byte()?.into(),
            b'r' | b'j' => self.little(4)? as u32,
            _ => text(self.line()?)?,
        };
        if matches!(code, b'h' | b'j' | b'g') {
            let known = self.memo.get(&index).copied();
            self.stack.push(known.ok_or_else(|| format!("memo {index} is empty"))?);
            return Ok(());
        }
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_read() {
        // {'a': [1, -2, 3.5, None, True], 'b': ('x', 2**40)} of protocol 4.
        let bytes = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\
            \xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\x00N\x88e\x8c\x01b\x94\x8c\x01x\x94\x8a\
            \x06\x00\x00\x00\x00\x00\x01\x86\x94u.";
        let pickle = Pickle::read(bytes).unwrap();
        let list = pickle.list(pickle.get(pickle.root(), "a").unwrap()).unwrap();
        let values: Vec<_> = list.iter().map(|&id| pickle.value(id).clone()).collect();
        let want = [Value::Int(1), Value::Int(-2), Value::Float(3.5), Value::None];
        assert_eq!(values[..4], want);
        let pair = pickle.list(pickle.get(pickle.root(), "b").unwrap()).unwrap();
        assert_eq!((pickle.text(pair[0]), pickle.number(pair[1])), (Some("x"), Some(1 << 40)));
    }

    #[test]
    fn what_would_run_code_is_refused_by_name() {
        // os.system('id'), as a pickle would have it run.
        for bytes in [&b"cos\nsystem\n(S'id'\ntR."[..], b"\x80\x04\x8c\x02os\x8c\x06system\x93."] {
            let error = Pickle::read(bytes).unwrap_err();
            assert!(error.contains("runs code"), "{error}");
        }
    }

    #[test]
    fn sharing_does_not_multiply() {
        // Sixty lists, each twice the one before: a tree of 2^60 values for who copies.
        let mut bytes = b"\x80\x04]\x94".to_vec();
        for index in 0..60 {
            bytes.extend([b'h', index, b'h', index, 0x86, 0x94]);
        }
        bytes.push(b'.');
        assert_eq!(Pickle::read(&bytes).unwrap().values.len(), 61);
    }
}
