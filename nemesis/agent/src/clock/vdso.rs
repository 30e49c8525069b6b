//! The vDSO: the small library that the kernel maps into every process, with the functions that read clocks.
//!
//! All 64-bit processes of a kernel have the same vDSO. So the agent's own vDSO is the original for every process, and
//! a restarted agent can heal the changes of its predecessor.

use std::ops::Range;

use super::code::{Code, FUNCTIONS, JUMP_LEN};
use super::slot::Slot;

/// A vDSO that can be rewritten.
#[derive(Debug)]
pub(super) struct Image {
    original: Vec<u8>,
    /// The start of each of [`FUNCTIONS`].
    entries: [usize; 3],
    /// The place for the code: behind all loaded bytes, at the end of the last page.
    cave: usize,
    code: Code,
}

/// The state of a process's vDSO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The original.
    Original,
    /// The functions are original; the agent's code is still there, because a thread might return to it.
    Retired,
    /// The agent's code with this slot.
    Ours(Slot),
}

impl Image {
    /// Parses the original and finds the place for the code, or returns the reason why there is none.
    pub fn new(original: Vec<u8>) -> Result<Image, String> {
        let code = Code::new();
        let elf = Elf::new(&original)?;
        let mut entries = [0; 3];
        for (entry, name) in entries.iter_mut().zip(FUNCTIONS) {
            let function = elf.function(name).ok_or_else(|| format!("its vDSO has no function {name}"))?;
            if function.len() < JUMP_LEN || function.end > elf.loaded.end {
                return Err(format!("the function {name} of its vDSO is too short to be replaced"));
            }
            *entry = function.start;
        }
        let cave = original.len().saturating_sub(code.len()) & !63;
        if cave < elf.loaded.end {
            let free = original.len().saturating_sub(elf.loaded.end);
            return Err(format!("its vDSO has {free} bytes of room, and {} are needed", code.len()));
        }
        Ok(Image { original, entries, cave, code })
    }

    /// Classifies the vDSO of a process; none if it is neither the original nor the agent's.
    pub fn find(&self, bytes: &[u8]) -> Option<Found> {
        if bytes == self.original {
            return Some(Found::Original);
        }
        let slot = self.code.slot(bytes.get(self.cave..)?.get(..self.code.len())?)?;
        let with = |parts: Vec<(usize, Vec<u8>)>| {
            let mut expected = self.original.clone();
            parts.iter().for_each(|(at, part)| expected[*at..][..part.len()].copy_from_slice(part));
            expected == bytes
        };
        if with(self.parts(&slot)) {
            return Some(Found::Ours(slot));
        }
        with(vec![(self.cave, self.code.with(&slot))]).then_some(Found::Retired)
    }

    /// Returns the writes that install the slot: the code first, and then the jumps to it.
    pub fn parts(&self, slot: &Slot) -> Vec<(usize, Vec<u8>)> {
        let mut parts = vec![(self.cave, self.code.with(slot))];
        let jumps = self.entries.iter().enumerate();
        parts.extend(jumps.map(|(which, &entry)| (entry, self.code.jump(which, entry, self.cave).to_vec())));
        parts
    }

    /// Returns the writes that restore the original: the functions first, and then the bytes of the code.
    pub fn original_parts(&self) -> Vec<(usize, Vec<u8>)> {
        let mut parts = self.parts(&Slot::default());
        parts.reverse();
        parts.into_iter().map(|(at, part)| (at, self.original[at..][..part.len()].to_vec())).collect()
    }

    /// Returns the writes that restore the functions and keep the code, which then shows the kernel's time.
    pub fn retired_parts(&self) -> Vec<(usize, Vec<u8>)> {
        let mut parts = self.original_parts();
        parts.retain(|(at, _)| *at != self.cave);
        parts.push((self.cave, self.code.with(&Slot::default())));
        parts
    }

    /// Returns the code to install.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Returns the address of the code in a process whose vDSO is at `base`.
    pub fn code_at(&self, base: u64) -> u64 {
        base + self.cave as u64
    }

    /// Returns the addresses of the functions in a process whose vDSO is at `base`.
    pub fn entries_at(&self, base: u64) -> [u64; 3] {
        self.entries.map(|entry| base + entry as u64)
    }

    /// Returns whether a thread at this address would continue in the middle of a jump. At every other place of a
    /// function the thread is safe: only the first bytes are overwritten, and no compiler jumps back into those.
    pub fn is_torn(&self, base: u64, rip: u64) -> bool {
        self.entries_at(base).iter().any(|&entry| rip > entry && rip < entry + JUMP_LEN as u64)
    }
}

/// The parts of an ELF file that a vDSO needs.
struct Elf<'a> {
    bytes: &'a [u8],
    /// The base of the file's addresses.
    base: u64,
    /// The loaded range.
    loaded: Range<usize>,
    dynamic: Range<usize>,
}

const MACHINE_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const SYMBOL_LEN: usize = 24;

impl<'a> Elf<'a> {
    fn new(bytes: &'a [u8]) -> Result<Elf<'a>, String> {
        if bytes.get(..4) != Some(b"\x7fELF") {
            return Err("its vDSO is no ELF file".into());
        }
        let mut elf = Elf { bytes, base: 0, loaded: 0..0, dynamic: 0..0 };
        let machine = elf.number::<2>(18);
        if bytes.get(4) != Some(&2) || machine != Some(u64::from(MACHINE_X86_64)) {
            let bits = if bytes.get(4) == Some(&1) { 32 } else { 64 };
            let machine = machine.unwrap_or_default();
            return Err(format!(
                "it is a {bits}-bit program for machine {machine} (ELF): only 64-bit x86-64 is supported, \
                 use an image for x86-64"
            ));
        }
        elf.segments().ok_or("the program headers of its vDSO are cut off")?;
        if elf.loaded.is_empty() || elf.loaded.end > bytes.len() || elf.dynamic.is_empty() {
            return Err("its vDSO has no loaded part or no table of symbols".into());
        }
        Ok(elf)
    }

    fn segments(&mut self) -> Option<()> {
        let [at, size, count] = [self.number::<8>(32)?, self.number::<2>(54)?, self.number::<2>(56)?];
        for header in (0..count).map(|i| (at + i * size) as usize) {
            let [offset, address, len] = [8, 16, 32].map(|field| self.number::<8>(header + field));
            let (start, len) = (offset? as usize, len? as usize);
            match self.number::<4>(header)? as u32 {
                PT_LOAD => (self.base, self.loaded) = (address?, start..start.checked_add(len)?),
                PT_DYNAMIC => self.dynamic = start..start.checked_add(len)?,
                _ => {}
            }
        }
        Some(())
    }

    fn function(&self, name: &str) -> Option<Range<usize>> {
        let [strings, symbols] = [self.table(DT_STRTAB)?, self.table(DT_SYMTAB)?];
        let count = match self.table(DT_HASH) {
            // The second number is the number of symbols.
            Some(hash) => self.number::<4>(hash + 4)? as usize,
            // Linkers place the names right behind the symbols.
            None => strings.checked_sub(symbols)? / SYMBOL_LEN,
        };
        (0..count).map(|i| symbols + i * SYMBOL_LEN).find_map(|symbol| {
            let called = self.bytes.get(strings + self.number::<4>(symbol)? as usize..)?;
            let defined = self.number::<2>(symbol + 6)? != 0;
            let start = self.number::<8>(symbol + 8)?.checked_sub(self.base)? as usize;
            let len = self.number::<8>(symbol + 16)? as usize;
            (defined && called.strip_prefix(name.as_bytes())?.first() == Some(&0)).then_some(start..start + len)
        })
    }

    /// Returns the address of a table of the dynamic section.
    fn table(&self, tag: u64) -> Option<usize> {
        self.dynamic.clone().step_by(16).find_map(|entry| {
            let found = self.number::<8>(entry)? == tag;
            found.then(|| self.number::<8>(entry + 8))?.and_then(|at| usize::try_from(at.checked_sub(self.base)?).ok())
        })
    }

    fn number<const LEN: usize>(&self, at: usize) -> Option<u64> {
        let mut number = [0; 8];
        number[..LEN].copy_from_slice(self.bytes.get(at..at.checked_add(LEN)?)?);
        Some(u64::from_le_bytes(number))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::memory::Memory, *};

    fn own() -> (Vec<u8>, Image) {
        let (memory, mapped) = Memory::of_vdso(std::process::id() as i32).unwrap();
        let bytes = memory.read(mapped).unwrap();
        (bytes.clone(), Image::new(bytes).unwrap())
    }

    #[test]
    fn the_original_and_ours_are_told_apart_from_anything_else() {
        let (original, image) = own();
        assert_eq!(image.find(&original), Some(Found::Original));
        let slot = Slot { made_by: 3, ..Slot::default() };
        let mut ours = original.clone();
        for (at, part) in image.parts(&slot) {
            ours[at..][..part.len()].copy_from_slice(&part);
        }
        assert_eq!(image.find(&ours), Some(Found::Ours(slot)));
        let mut retired = ours.clone();
        for (at, part) in image.retired_parts() {
            retired[at..][..part.len()].copy_from_slice(&part);
        }
        assert_eq!(image.find(&retired), Some(Found::Retired));
        let mut half = ours.clone();
        half[image.entries[1]] = 0xcc;
        assert_eq!(image.find(&half), None);
        for (at, part) in image.original_parts() {
            ours[at..][..part.len()].copy_from_slice(&part);
        }
        assert_eq!(ours, original);
    }

    #[test]
    fn what_is_no_vdso_of_this_machine_is_refused_with_what_it_is() {
        let (original, _) = own();
        let refused = |change: fn(&mut Vec<u8>)| {
            let mut bytes = original.clone();
            change(&mut bytes);
            Image::new(bytes).unwrap_err()
        };
        assert!(refused(|bytes| bytes[4] = 1).contains("32-bit program"));
        assert!(refused(|bytes| bytes[18] = 183).contains("machine 183"));
        assert!(refused(|bytes| bytes[0] = 0).contains("no ELF file"));
        assert!(refused(|bytes| bytes.truncate(60)).contains("cut off"));
        assert!(refused(|bytes| bytes.truncate(0x1600)).contains("bytes of room"));
    }

    #[test]
    fn a_thread_is_torn_behind_the_first_byte_of_each_jump_and_up_to_its_last() {
        let (_, image) = own();
        for entry in image.entries_at(0x7000) {
            let torn: Vec<u64> = (0..=JUMP_LEN as u64).filter(|byte| image.is_torn(0x7000, entry + byte)).collect();
            assert_eq!(torn, [1, 2, 3, 4]);
        }
    }
}
