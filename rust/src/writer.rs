//! The writer: one walk over a document, column by column, into the three sections.

use std::mem::take;

use crate::memory::{copied, extend, filled, push, reserve};
use crate::py::{self, text_of, Class, Value};
use crate::refusal::Refusal;
use crate::scale::{least_scale, scale_of, scaled};
use crate::shapes::Shapes;
use crate::typed::Format;
use crate::wire::{put_numbers, put_varint, zigzag, VARINT_BYTES};
use crate::{kind, mask, MAX_LEVELS, TUPLES};

/// Room that outlives a document, so that the next one need not ask for it.
pub struct Room {
    head: Vec<u8>,
    schema: Vec<u8>,
    tokens: Vec<u8>,
    text: Vec<u8>,
    kinds: Vec<u8>,
    ints: Vec<i64>,
    floats: Vec<f64>,
    decimals: Vec<i64>,
    ticks: Vec<i64>,
    /// Only its room: what stood there is no longer alive.
    rows: Vec<usize>,
    /// The same.
    texts: Vec<[usize; 2]>,
}

const KEPT_BYTES: usize = 1 << 18;

/// Room for the mask, the scale and the number of a row.
const TOKEN_BYTES: usize = 3 + VARINT_BYTES;

impl Room {
    pub const fn new() -> Self {
        Room {
            head: Vec::new(),
            schema: Vec::new(),
            tokens: Vec::new(),
            text: Vec::new(),
            kinds: Vec::new(),
            ints: Vec::new(),
            floats: Vec::new(),
            decimals: Vec::new(),
            ticks: Vec::new(),
            rows: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Whether it is small enough to be kept.
    pub fn is_small(&self) -> bool {
        self.schema.capacity() + self.tokens.capacity() + self.text.capacity() + 8 * self.floats.capacity() < KEPT_BYTES
    }
}

/// The three sections of a payload, and their lengths before them.
pub struct Payload<'r> {
    room: &'r Room,
}

impl Payload<'_> {
    fn bytes(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    pub fn parts(&self) -> [&[u8]; 4] {
        [&self.room.head, &self.room.schema, &self.room.tokens, &self.room.text]
    }
}

struct Writer<'r, 'a, 'py> {
    to: &'r mut Room,
    /// The rows of the nodes that are being written, one node's behind its parent's.
    rows: Vec<Value<'a, 'py>>,
    texts: Vec<&'a str>,
    charged: u64,
    /// How many zero bytes the text has by right.
    zeros: usize,
    /// Where the search for a scale begins; it ends at the same in any case.
    hint: usize,
}

/// Returns the payload of `document`.
pub fn pack<'r>(document: Value<'_, '_>, room: &'r mut Room) -> Result<Payload<'r>, Refusal> {
    room.schema.clear();
    room.tokens.clear();
    room.text.clear();
    let rows = emptied(take(&mut room.rows));
    let texts = emptied(take(&mut room.texts));
    let mut writer = Writer { to: room, rows, texts, charged: 0, zeros: 0, hint: 0 };
    writer.one(document, 0)?;
    let Writer { charged, zeros, rows, texts, .. } = writer;
    room.rows = emptied(rows);
    room.texts = emptied(texts);
    room.head.clear();
    reserve(&mut room.head, 2 * VARINT_BYTES)?;
    put_varint(&mut room.head, room.schema.len() as u64);
    put_varint(&mut room.head, room.tokens.len() as u64);
    let payload = Payload { room };
    // One zero behind each string, and no other in any of them.
    if charged > crate::budget(payload.bytes()) || memchr::memchr_iter(0, &payload.room.text).count() != zeros {
        return Err(Refusal::NotHeld);
    }
    Ok(payload)
}

/// Returns a vector without elements that has the memory of another one, whose elements are as large.
fn emptied<Old, New>(mut vector: Vec<Old>) -> Vec<New> {
    vector.clear();
    vector.into_iter().map(|_| unreachable!()).collect()
}

impl<'a, 'py> Writer<'_, 'a, 'py> {
    fn node(&mut self, start: usize, depth: usize) -> Result<(), Refusal> {
        match self.rows.len() - start {
            1 => self.one(self.rows[start], depth),
            count => self.many(start, 1, count, depth),
        }
    }

    // ---- one row

    fn one(&mut self, value: Value<'a, 'py>, depth: usize) -> Result<(), Refusal> {
        let to = &mut *self.to;
        self.charged += 1;
        reserve(&mut to.tokens, TOKEN_BYTES)?;
        match py::class_of(value) {
            Class::Text => {
                to.tokens.push(mask::TEXT as u8);
                put_text(&mut to.text, text_of(value)?)?;
                self.zeros += 1;
            }
            Class::Null => to.tokens.push(mask::NULL as u8),
            Class::False => to.tokens.push(mask::BOOLEAN as u8),
            Class::True => to.tokens.push(mask::TRUE as u8),
            Class::Int => match py::int_of(value) {
                Some(int) => {
                    to.tokens.push(mask::INT as u8);
                    put_varint(&mut to.tokens, zigzag(int));
                }
                None => {
                    put_varint(&mut to.tokens, mask::BIGINT);
                    self.put_bigint(value)?;
                }
            },
            Class::Float => {
                let float = py::float_of(value);
                match least_scale(float, 0, self.hint) {
                    Some((scale, held)) => {
                        self.hint = scale;
                        to.tokens.extend_from_slice(&[mask::DECIMAL as u8, scale as u8]);
                        put_varint(&mut to.tokens, zigzag(held));
                    }
                    None => {
                        put_varint(&mut to.tokens, mask::DOUBLE);
                        self.put_raw(&float.to_le_bytes())?;
                    }
                }
            }
            Class::Array => return self.array(value, depth),
            Class::Object => return self.object(value, depth),
            Class::Stranger => return Err(Refusal::NotHeld),
        }
        Ok(())
    }

    #[inline(never)]
    fn array(&mut self, value: Value<'a, 'py>, depth: usize) -> Result<(), Refusal> {
        if depth >= MAX_LEVELS {
            return Err(Refusal::NotHeld);
        }
        let start = self.rows.len();
        let length = py::elements(value, &mut self.rows)?;
        self.to.tokens.push(mask::ARRAY as u8);
        put_varint(&mut self.to.tokens, zigzag(length as i64));
        if length > 0 {
            self.node(start, depth + 1)?;
        }
        self.rows.truncate(start);
        Ok(())
    }

    #[inline(never)]
    fn object(&mut self, value: Value<'a, 'py>, depth: usize) -> Result<(), Refusal> {
        if depth >= MAX_LEVELS {
            return Err(Refusal::NotHeld);
        }
        let start = self.rows.len();
        let to = &mut *self.to;
        let size = py::size_of(value);
        to.tokens.push(mask::OBJECT as u8);
        reserve(&mut to.schema, 1 + VARINT_BYTES)?;
        reserve(&mut self.rows, size)?;
        to.schema.push(1);
        put_varint(&mut to.schema, size as u64);
        for (key, member) in py::members(value) {
            put_key(&mut to.schema, text_of(key)?)?;
            self.rows.push(member);
        }
        if size == 0 {
            to.tokens.push(0);
        }
        for row in start..self.rows.len() {
            self.one(self.rows[row], depth + 1)?;
        }
        self.rows.truncate(start);
        Ok(())
    }

    // ---- many rows

    /// Writes `count` rows: each `step`-th from `start` on.
    fn many(&mut self, start: usize, step: usize, count: usize, depth: usize) -> Result<(), Refusal> {
        let present = self.columns(start, step, count)?;
        if present & (mask::ARRAY | mask::OBJECT) == 0 {
            return Ok(());
        }
        if depth >= MAX_LEVELS {
            return Err(Refusal::NotHeld);
        }
        let end = self.rows.len();
        for (bit, class) in [(mask::ARRAY, Class::Array), (mask::OBJECT, Class::Object)] {
            if present & bit == 0 {
                continue;
            }
            let mut first = start;
            if present != bit || step > 1 {
                first = end;
                reserve(&mut self.rows, count)?;
                for row in 0..count {
                    let value = self.rows[start + row * step];
                    if py::class_of(value) == class {
                        self.rows.push(value);
                    }
                }
            }
            if class == Class::Array {
                self.arrays(first, depth + 1)?;
            } else {
                self.objects(first, depth + 1)?;
            }
            self.rows.truncate(end);
        }
        Ok(())
    }

    /// Writes the mask, the kinds and every scalar of a node, and returns its mask.
    #[inline(never)]
    fn columns(&mut self, start: usize, step: usize, count: usize) -> Result<u64, Refusal> {
        let rows = &self.rows[start..];
        self.charged += count as u64;
        let to = &mut *self.to;
        to.kinds.clear();
        reserve(&mut to.kinds, count)?;
        to.ints.clear();
        to.floats.clear();
        self.texts.clear();
        let mut bigints = Vec::new();
        let mut present = 0;
        let mut row = 0;
        // Run by run: neighbours are mostly of one class.
        while row < count {
            let value = rows[row * step];
            let class = py::class_of(value);
            let run = (row..count).map(|row| rows[row * step]).take_while(|&value| py::class_of(value) == class);
            let ran = to.kinds.len();
            let kind = match class {
                Class::Float => {
                    let before = to.floats.len();
                    reserve(&mut to.floats, count - row)?;
                    to.floats.extend(run.map(py::float_of));
                    row += to.floats.len() - before;
                    kind::DECIMAL
                }
                Class::Int => match py::int_of(value) {
                    Some(_) => {
                        let before = to.ints.len();
                        reserve(&mut to.ints, count - row)?;
                        to.ints.extend(run.map_while(py::int_of));
                        row += to.ints.len() - before;
                        kind::INT
                    }
                    None => {
                        push(&mut bigints, value)?;
                        row += 1;
                        kind::BIGINT
                    }
                },
                Class::Text => {
                    reserve(&mut self.texts, count - row)?;
                    for value in run {
                        self.texts.push(text_of(value)?);
                        row += 1;
                    }
                    kind::TEXT
                }
                Class::Stranger => return Err(Refusal::NotHeld),
                _ => {
                    row += run.count();
                    match class {
                        Class::Object => kind::OBJECT,
                        Class::Array => kind::ARRAY,
                        Class::Null => kind::NULL,
                        Class::False => kind::FALSE,
                        _ => kind::TRUE,
                    }
                }
            };
            present |= mask::OF_KIND[kind as usize];
            debug_assert!(row > ran);
            to.kinds.resize(row, kind);
        }
        let mut scale = 0;
        if present & mask::DECIMAL != 0 {
            scale = scale_of(&to.floats, self.hint, &mut to.decimals)?;
            self.hint = scale;
            if to.decimals.len() < to.floats.len() {
                present |= mask::DOUBLE;
                present &= if to.decimals.is_empty() { !mask::DECIMAL } else { !0 };
                let mut floats = to.floats.iter();
                for each in to.kinds.iter_mut().filter(|each| **each == kind::DECIMAL) {
                    if floats.next().is_some_and(|&float| scaled(float, scale).is_none()) {
                        *each = kind::DOUBLE;
                    }
                }
            }
        }
        let format = Format::of(&self.texts, &mut to.ticks)?;
        if format.is_some() {
            present ^= mask::TEXT ^ mask::TYPED;
        }
        reserve(&mut to.schema, VARINT_BYTES + 1)?;
        put_varint(&mut to.schema, present);
        if !present.is_power_of_two() || present <= mask::BOOLEAN {
            if format.is_some() {
                to.kinds.iter_mut().filter(|each| **each == kind::TEXT).for_each(|each| *each = kind::TYPED);
            }
            extend(&mut to.tokens, &to.kinds)?;
        }
        if present & mask::INT != 0 {
            put_numbers(&mut to.schema, &mut to.tokens, &to.ints)?;
        }
        if present & mask::DECIMAL != 0 {
            push(&mut to.schema, scale as u8)?;
            put_numbers(&mut to.schema, &mut to.tokens, &to.decimals)?;
        }
        match format {
            None => {
                self.texts.iter().try_for_each(|text| put_text(&mut to.text, text))?;
                self.zeros += self.texts.len();
            }
            Some(format) => {
                format.put(&mut to.schema)?;
                if let Some(bytes) = format.raw_bytes() {
                    reserve(&mut to.text, bytes * self.texts.len())?;
                    let from = to.text.len();
                    self.texts.iter().for_each(|text| format.put_raw(text, &mut to.text));
                    self.zeros += memchr::memchr_iter(0, &to.text[from..]).count();
                } else {
                    put_numbers(&mut to.schema, &mut to.tokens, &to.ticks)?;
                }
            }
        }
        if present & mask::DOUBLE != 0 {
            for double in take(&mut self.to.floats) {
                if scaled(double, scale).is_none() {
                    self.put_raw(&double.to_le_bytes())?;
                }
            }
        }
        for bigint in bigints {
            self.put_bigint(bigint)?;
        }
        Ok(present)
    }

    fn put_raw(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        extend(&mut self.to.text, bytes)?;
        self.zeros += bytes.iter().filter(|&&byte| byte == 0).count();
        Ok(())
    }

    #[inline(never)]
    fn put_bigint(&mut self, value: Value<'a, 'py>) -> Result<(), Refusal> {
        let spelled = py::digits_of(value)?;
        let digits = text_of(spelled.as_borrowed())?;
        if digits.trim_start_matches('-').len() > py::MAX_DIGITS {
            return Err(Refusal::NotHeld);
        }
        put_text(&mut self.to.text, digits)?;
        self.zeros += 1;
        Ok(())
    }

    /// Writes the arrays from `first` on; `depth` is that of their elements.
    #[inline(never)]
    fn arrays(&mut self, first: usize, depth: usize) -> Result<(), Refusal> {
        let end = self.rows.len();
        let count = end - first;
        let mut lengths = take(&mut self.to.ints);
        lengths.clear();
        reserve(&mut lengths, count)?;
        for row in first..end {
            let row = self.rows[row];
            lengths.push(py::elements(row, &mut self.rows)? as i64);
        }
        let length = lengths[0];
        let is_fixed = count > 1 && TUPLES.contains(&length) && lengths.iter().all(|&each| each == length);
        if is_fixed {
            push(&mut self.to.schema, length as u8)?;
        } else {
            if count > 1 {
                push(&mut self.to.schema, 0)?;
            }
            put_numbers(&mut self.to.schema, &mut self.to.tokens, &lengths)?;
        }
        self.to.ints = lengths;
        if is_fixed {
            return self.columns_of(end, length as usize, count, depth);
        }
        if self.rows.len() > end {
            self.node(end, depth)?;
        }
        self.rows.truncate(end);
        Ok(())
    }

    /// Writes `count` rows of `width` values each, from `first` on, column by column, and drops them.
    fn columns_of(&mut self, first: usize, width: usize, count: usize, depth: usize) -> Result<(), Refusal> {
        for column in first..first + width {
            match count {
                1 => self.one(self.rows[column], depth)?,
                _ => self.many(column, width, count, depth)?,
            }
        }
        self.rows.truncate(first);
        Ok(())
    }

    /// Writes the objects from `first` on; `depth` is that of their members.
    #[inline(never)]
    fn objects(&mut self, first: usize, depth: usize) -> Result<(), Refusal> {
        let end = self.rows.len();
        let mut found = Shapes::default();
        for row in first..end {
            let row = self.rows[row];
            found.add(row, &mut self.rows)?;
        }
        let Shapes { keys, shapes, of_row, .. } = found;
        let to = &mut *self.to;
        reserve(&mut to.schema, 2 * VARINT_BYTES)?;
        put_varint(&mut to.schema, shapes.len() as u64);
        put_varint(&mut to.schema, keys.len() as u64);
        for key in &keys {
            put_key(&mut to.schema, key)?;
        }
        if shapes.len() > 1 {
            for shape in &shapes {
                reserve(&mut to.schema, VARINT_BYTES)?;
                put_varint(&mut to.schema, shape.len() as u64);
                let mut following = 0;
                for &key in shape {
                    reserve(&mut to.schema, VARINT_BYTES)?;
                    put_varint(&mut to.schema, if key == following { 0 } else { u64::from(key) + 1 });
                    following = key + 1;
                }
            }
        }
        if shapes.len() > 1 || keys.is_empty() {
            for &shape in &of_row {
                reserve(&mut to.tokens, VARINT_BYTES)?;
                put_varint(&mut to.tokens, u64::from(shape));
            }
        }
        if shapes.len() == 1 {
            return self.columns_of(end, keys.len(), of_row.len(), depth);
        }
        // Where the column of each key starts; then every value goes to its own.
        let mut places = filled(0usize, keys.len() + 1)?;
        for &shape in &of_row {
            for &key in &shapes[shape as usize] {
                places[key as usize + 1] += 1;
            }
        }
        for key in 0..keys.len() {
            places[key + 1] += places[key];
        }
        let starts = copied(&places)?;
        let values = copied(&self.rows[end..])?;
        self.rows.truncate(end);
        let mut columns = copied(&values)?;
        let mut values = values.into_iter();
        for &shape in &of_row {
            for (&key, value) in shapes[shape as usize].iter().zip(&mut values) {
                columns[places[key as usize]] = value;
                places[key as usize] += 1;
            }
        }
        for key in 0..keys.len() {
            extend(&mut self.rows, &columns[starts[key]..starts[key + 1]])?;
            self.node(end, depth)?;
            self.rows.truncate(end);
        }
        Ok(())
    }
}

#[inline(always)]
fn put_text(to: &mut Vec<u8>, text: &str) -> Result<(), Refusal> {
    reserve(to, text.len() + 1)?;
    to.extend_from_slice(text.as_bytes());
    to.push(0);
    Ok(())
}

#[inline(always)]
fn put_key(to: &mut Vec<u8>, key: &str) -> Result<(), Refusal> {
    reserve(to, VARINT_BYTES + key.len())?;
    put_varint(to, key.len() as u64);
    to.extend_from_slice(key.as_bytes());
    Ok(())
}
