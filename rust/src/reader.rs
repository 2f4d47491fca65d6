//! The reader: the three sections into Python objects, one node after the other.

use pyo3::prelude::*;

use crate::cache::{Cache, Layout};
use crate::memory::{filled, with_room, Shared};
use crate::py::{self, Made};
use crate::refusal::{malformed, truncated, Refusal};
use crate::scale::{quotient, LARGEST, SCALES};
use crate::typed::Format;
use crate::wire::{take_numbers, unzigzag, Cursor};
use crate::{kind, mask, MAX_LEVELS, TUPLES, TYPED_MIN};

pub struct Reader<'a, 'py> {
    py: Python<'py>,
    schema: Cursor<'a>,
    tokens: Cursor<'a>,
    text: Cursor<'a>,
    /// How many more rows the payload may have.
    budget: u64,
    /// How many more rows and keys it may have here.
    values: u64,
    levels: usize,
    cache: &'a mut Cache,
}

type Column<'py> = Vec<Made<'py>>;

impl<'a, 'py> Reader<'a, 'py> {
    /// Returns the document of `payload`, at most `levels` levels deep, of at most so many `values`, keys included.
    pub fn unpack(
        py: Python<'py>,
        payload: &'a [u8],
        levels: usize,
        values: u64,
        cache: &'a mut Cache,
    ) -> Result<Made<'py>, Refusal> {
        let mut head = Cursor::new(payload);
        let schema_bytes = head.count(payload.len())?;
        let token_bytes = head.count(payload.len())?;
        let mut reader = Reader {
            py,
            schema: Cursor::new(head.bytes(schema_bytes)?),
            tokens: Cursor::new(head.bytes(token_bytes)?),
            text: Cursor::new(head.rest()),
            budget: crate::budget(payload.len()),
            values,
            levels: levels.min(MAX_LEVELS),
            cache,
        };
        let document = reader.one(0)?;
        if reader.schema.left() + reader.tokens.left() + reader.text.left() > 0 {
            return malformed(&c"a section goes on after the document");
        }
        Ok(document)
    }

    fn count(&mut self, values: usize) -> Result<(), Refusal> {
        self.values = self.values.checked_sub(values as u64).ok_or(Refusal::TooMany)?;
        Ok(())
    }

    fn charge(&mut self, rows: usize) -> Result<(), Refusal> {
        match self.budget.checked_sub(rows as u64) {
            Some(left) => {
                self.budget = left;
                self.count(rows)
            }
            None => malformed(&c"more values than its length pays for"),
        }
    }

    fn deeper(&self, depth: usize) -> Result<usize, Refusal> {
        if depth >= self.levels {
            return malformed(&c"more levels than are allowed here");
        }
        Ok(depth + 1)
    }

    // ---- one row

    fn one(&mut self, depth: usize) -> Result<Made<'py>, Refusal> {
        self.charge(1)?;
        let py = self.py;
        match self.tokens.varint()? {
            mask::NULL => Ok(py::new_null(py)),
            mask::BOOLEAN => Ok(py::new_bool(py, false)),
            mask::TRUE => Ok(py::new_bool(py, true)),
            mask::INT => py::new_int(py, unzigzag(self.tokens.varint()?)),
            mask::DECIMAL => {
                let scale = scale(self.tokens.byte()?)?;
                decimal(py, unzigzag(self.tokens.varint()?), scale)
            }
            mask::DOUBLE => self.double(),
            mask::BIGINT => self.bigint(),
            mask::TEXT => self.string(),
            mask::ARRAY => {
                let length = unzigzag(self.tokens.varint()?);
                self.array(length, depth)
            }
            mask::OBJECT => self.object(depth),
            _ => malformed(&c"not one kind for one row"),
        }
    }

    fn double(&mut self) -> Result<Made<'py>, Refusal> {
        let bytes = self.text.bytes(8)?;
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        py::new_float(self.py, f64::from_le_bytes(eight))
    }

    fn string(&mut self) -> Result<Made<'py>, Refusal> {
        py::new_text(self.py, self.text.until_zero()?)
    }

    #[inline(never)]
    fn bigint(&mut self) -> Result<Made<'py>, Refusal> {
        py::new_bigint(self.py, self.text.until_zero()?)
    }

    #[inline(never)]
    fn array(&mut self, length: i64, depth: usize) -> Result<Made<'py>, Refusal> {
        let depth = self.deeper(depth)?;
        match length {
            0 => py::new_list(self.py, 0, &mut std::iter::empty()),
            1 => py::new_list(self.py, 1, &mut std::iter::once(self.one(depth)?)),
            2.. => {
                let values = self.many(usize::try_from(length).unwrap_or(usize::MAX), depth)?;
                py::new_list(self.py, values.len(), &mut values.into_iter())
            }
            _ => malformed(&c"an impossible length"),
        }
    }

    #[inline(never)]
    fn object(&mut self, depth: usize) -> Result<Made<'py>, Refusal> {
        let depth = self.deeper(depth)?;
        let layout = self.layout()?;
        let Some(template) = &layout.only else {
            return malformed(&c"several shapes for one object");
        };
        if layout.keys.is_empty() && self.tokens.varint()? != 0 {
            return malformed(&c"a shape that is not there");
        }
        let object = py::new_like(self.py, template)?;
        for index in 0..layout.keys.len() {
            self.count(1)?;
            let value = self.one(depth)?;
            py::replace_member(&object, index, value, || &layout.keys[index])?;
        }
        Ok(object.into_any())
    }

    #[inline]
    fn layout(&mut self) -> Result<Shared<Layout>, Refusal> {
        self.cache.layout(self.py, &mut self.schema)
    }

    // ---- many rows

    fn node(&mut self, rows: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        match rows {
            1 => {
                let mut only = with_room(1)?;
                only.push(self.one(depth)?);
                Ok(only)
            }
            _ => self.many(rows, depth),
        }
    }

    fn many(&mut self, rows: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        self.charge(rows)?;
        let present = self.schema.varint()?;
        let texts = mask::TEXT | mask::TYPED;
        if present == 0 || present > mask::ALL || present & texts == texts {
            return malformed(&c"an impossible mask");
        }
        if present.is_power_of_two() && present > mask::BOOLEAN {
            return self.column(present, rows, depth);
        }
        self.mixed(present, rows, depth)
    }

    /// Reads a node whose rows are of several kinds.
    #[inline(never)]
    fn mixed(&mut self, present: u64, rows: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        let kinds = self.tokens.bytes(rows)?;
        let mut counts = [0usize; kind::ALL];
        for &kind in kinds {
            match counts.get_mut(kind as usize) {
                Some(count) => *count += 1,
                None => return malformed(&c"an unknown kind"),
            }
        }
        let mut used = 0;
        for (kind, &count) in counts.iter().enumerate() {
            used |= if count > 0 { mask::OF_KIND[kind] } else { 0 };
        }
        if used != present {
            return malformed(&c"a mask that is not that of its kinds");
        }
        // Not on the stack, which is small in some threads, and has this once for each level.
        let mut columns = with_room(kind::ALL)?;
        columns.resize_with(kind::ALL, || Column::new().into_iter());
        for kind in kind::IN_ORDER.map(usize::from) {
            if counts[kind] > 0 {
                columns[kind] = self.column(mask::OF_KIND[kind], counts[kind], depth)?.into_iter();
            }
        }
        let py = self.py;
        let mut merged = with_room(rows)?;
        for &kind in kinds {
            merged.push(match kind {
                kind::NULL => py::new_null(py),
                kind::FALSE => py::new_bool(py, false),
                kind::TRUE => py::new_bool(py, true),
                _ => columns[kind as usize].next().expect("as many values of a kind as it has rows"),
            });
        }
        Ok(merged)
    }

    /// Reads the values of one kind. Their rows are charged.
    fn column(&mut self, bit: u64, count: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        match bit {
            mask::ARRAY => return self.arrays(count, depth),
            mask::OBJECT => return self.objects(count, depth),
            _ => (),
        }
        self.scalars(bit, count)
    }

    #[inline(never)]
    fn scalars(&mut self, bit: u64, count: usize) -> Result<Column<'py>, Refusal> {
        let py = self.py;
        // Each of them takes a byte of one of the two sections at least.
        let mut values = with_room(count.min(self.tokens.left() + self.text.left()))?;
        match bit {
            mask::INT => take_numbers(&mut self.schema, &mut self.tokens, count, |int| {
                values.push(py::new_int(py, int)?);
                Ok(())
            })?,
            mask::DECIMAL => {
                let scale = scale(self.schema.byte()?)?;
                take_numbers(&mut self.schema, &mut self.tokens, count, |held| {
                    values.push(decimal(py, held, scale)?);
                    Ok(())
                })?;
            }
            mask::TEXT => {
                for _ in 0..count {
                    values.push(self.string()?);
                }
            }
            mask::TYPED => {
                if count < TYPED_MIN {
                    return malformed(&c"too few strings to be typed");
                }
                let format = Format::take(&mut self.schema)?;
                if let Some(bytes) = format.raw_bytes() {
                    for _ in 0..count {
                        values.push(py::new_ascii(py, format.spell_raw(self.text.bytes(bytes)?).as_bytes())?);
                    }
                } else {
                    take_numbers(&mut self.schema, &mut self.tokens, count, |ticks| {
                        values.push(py::new_ascii(py, format.spell(ticks)?.as_bytes())?);
                        Ok(())
                    })?;
                }
            }
            mask::DOUBLE => {
                for _ in 0..count {
                    values.push(self.double()?);
                }
            }
            _ => {
                for _ in 0..count {
                    values.push(self.bigint()?);
                }
            }
        }
        Ok(values)
    }

    #[inline(never)]
    fn arrays(&mut self, count: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        let depth = self.deeper(depth)?;
        let py = self.py;
        let fixed = if count > 1 { self.schema.byte()? } else { 0 };
        if fixed == 0 {
            let mut lengths = with_room(count.min(self.tokens.left()))?;
            let mut total = 0;
            let most = self.budget as i64;
            take_numbers(&mut self.schema, &mut self.tokens, count, |length| {
                if !(0..=most).contains(&length) {
                    return malformed(&c"an impossible length");
                }
                total += length as u64;
                lengths.push(length as usize);
                Ok(())
            })?;
            if count > 1 && TUPLES.contains(&(lengths[0] as i64)) && lengths.iter().all(|&length| length == lengths[0])
            {
                return malformed(&c"lengths where a fixed one would do");
            }
            let mut values = match total {
                0 => Vec::new(),
                _ => self.node(usize::try_from(total).unwrap_or(usize::MAX), depth)?,
            }
            .into_iter();
            let mut made = with_room(count)?;
            for length in lengths {
                made.push(py::new_list(py, length, &mut values)?);
            }
            return Ok(made);
        }
        if !TUPLES.contains(&fixed.into()) {
            return malformed(&c"an impossible fixed length");
        }
        let fixed = usize::from(fixed);
        let mut columns = with_room(fixed)?;
        for _ in 0..fixed {
            columns.push(self.many(count, depth)?.into_iter());
        }
        let mut made = with_room(count)?;
        for _ in 0..count {
            made.push(py::new_list(py, fixed, &mut columns.iter_mut().filter_map(Iterator::next))?);
        }
        Ok(made)
    }

    #[inline(never)]
    fn objects(&mut self, count: usize, depth: usize) -> Result<Column<'py>, Refusal> {
        let depth = self.deeper(depth)?;
        let py = self.py;
        let layout = self.layout()?;
        let mut of_row = Vec::new();
        let mut rows_of = filled(count, layout.keys.len())?;
        if layout.only.is_none() || layout.keys.is_empty() {
            of_row = self.shapes_of_rows(count, layout.shapes.len().max(1))?;
        }
        if layout.only.is_none() {
            rows_of.fill(0);
            for &shape in &of_row {
                layout.shapes[shape].keys.iter().for_each(|&key| rows_of[key as usize] += 1);
            }
        }
        let mut columns = with_room(rows_of.len())?;
        for rows in rows_of {
            self.count(rows)?;
            columns.push(self.node(rows, depth)?.into_iter());
        }
        // Only now that their values are here, which the payload's bytes have paid for.
        let mut made = with_room(count)?;
        if let Some(template) = &layout.only {
            for _ in 0..count {
                let object = py::new_like(py, template)?;
                for (index, column) in columns.iter_mut().enumerate() {
                    let value = column.next().expect("as many values of a key as there are rows");
                    py::replace_member(&object, index, value, || &layout.keys[index])?;
                }
                made.push(object.into_any());
            }
            return Ok(made);
        }
        for shape in of_row {
            let shape = &layout.shapes[shape];
            let object = py::new_like(py, &shape.template)?;
            for (index, &key) in shape.keys.iter().enumerate() {
                let value = columns[key as usize].next().expect("as many values of a key as it has rows");
                py::replace_member(&object, index, value, || &layout.keys[key as usize])?;
            }
            made.push(object.into_any());
        }
        Ok(made)
    }

    /// Reads which shape each of `count` objects has: all of them, in the order of first appearance.
    fn shapes_of_rows(&mut self, count: usize, shapes: usize) -> Result<Vec<usize>, Refusal> {
        if count > self.tokens.left() {
            return Err(truncated());
        }
        let mut of_row = with_room(count)?;
        let mut seen = 0;
        for _ in 0..count {
            let shape = self.tokens.count(seen)?;
            seen += usize::from(shape == seen);
            of_row.push(shape);
        }
        if seen != shapes {
            return malformed(&c"a shape that no object has, or that is not there");
        }
        Ok(of_row)
    }
}

fn scale(byte: u8) -> Result<usize, Refusal> {
    if usize::from(byte) >= SCALES {
        return malformed(&c"a scale over 15");
    }
    Ok(byte.into())
}

#[inline]
fn decimal(py: Python<'_>, held: i64, scale: usize) -> Result<Made<'_>, Refusal> {
    if held.unsigned_abs() > LARGEST as u64 {
        return malformed(&c"a decimal of more than 2^53");
    }
    py::new_float(py, quotient(held, scale))
}
