//! The code that replaces the three functions of a vDSO.
//!
//! The code is position-independent: a slot of data, which the agent writes, and behind it the three functions. Each
//! function makes the real system call and computes the shown time from the slot. The functions use no stack except the
//! red zone, call nothing, and change only caller-saved registers. Each function keeps its arguments in `r9` and `r10`
//! from its third instruction on, and has no effect except its stores through them. So a thread inside can be moved
//! back to the beginning of its call at any time ([`Code::rewound`]), and the agent can change the slot or remove the
//! code while the process reads its clocks.

#![allow(unsafe_code, reason = "assembly; it never runs in this program, but for its arithmetic in a test")]

use std::ops::Range;

use super::slot::{SLOT_LEN, Slot};

// The offsets in the slot are those of `Slot::to_bytes`: 16 bytes that say what it is, the number of a change, then
// three times five numbers, for the wall clock, the monotonic clock and the one that also counts suspended time.
std::arch::global_asm!(
    r#"
    .pushsection .text.harness_clock, "ax", @progbits
    .p2align 6
    .globl harness_clock_code, harness_clock_gettime, harness_clock_gettimeofday, harness_clock_time
    .globl harness_clock_shown, harness_clock_end
    .hidden harness_clock_code, harness_clock_gettime, harness_clock_gettimeofday, harness_clock_time
    .hidden harness_clock_shown, harness_clock_end

    // rax: what the kernel says, in ns; r8: numbers of the clock. Leaves in rax what is shown. Changes rcx, rdx, r11.
    //     shown = max(0, said + base + ((said - since) * rate >> 32) + (strobe, in every other period from since))
    .macro harness_clock_show
        mov     r11, rax
        sub     rax, [r8 + 8]
        mov     rcx, rax
        imul    qword ptr [r8 + 16]
        shrd    rax, rdx, 32
        add     r11, [r8]
        add     r11, rax
        mov     rax, rcx
        mov     rcx, [r8 + 32]
        test    rcx, rcx
        jz      77f
        xor     edx, edx
        test    rax, rax
        cmovs   rax, rdx
        div     rcx
        test    al, 1
        jnz     77f
        add     r11, [r8 + 24]
    77: xor     eax, eax
        test    r11, r11
        cmovns  rax, r11
    .endm

    // rsi: seconds and nanoseconds. Leaves nanoseconds in rax.
    .macro harness_clock_sum
        imul    rax, [rsi], 1000000000
        add     rax, [rsi + 8]
    .endm

    // rax: nanoseconds. Leaves seconds in rax, and the rest in rdx.
    .macro harness_clock_split
        xor     edx, edx
        mov     ecx, 1000000000
        div     rcx
    .endm

    harness_clock_code:
        .fill   24 + 3 * 40, 1, 0
    // Which numbers are for which clock, by the clock's id: 0 (REALTIME), 1 (MONOTONIC), 5 and 6 (their coarse forms),
    // 7 (BOOTTIME), 8 and 9 (ALARM), 11 (TAI). 255: none; 2 and 3 are times of a process and a thread, 4 is
    // MONOTONIC_RAW.
    77: .byte   24, 64, 255, 255, 255, 24, 64, 104, 24, 104, 255, 24
        .p2align 4

    harness_clock_gettime:
        mov     r9, rdi
        mov     r10, rsi
        mov     eax, 228
        syscall
        test    eax, eax
        jnz     78f
        cmp     edi, 12
        jae     78f
        lea     r8, [rip + 77b]
        mov     ecx, edi
        movzx   ecx, byte ptr [r8 + rcx]
        cmp     ecx, 255
        je      78f
        lea     r8, [rip + harness_clock_code]
        add     r8, rcx
        harness_clock_sum
        harness_clock_show
        harness_clock_split
        mov     [rsi], rax
        mov     [rsi + 8], rdx
        xor     eax, eax
    78: ret

        .p2align 4
    harness_clock_gettimeofday:
        mov     r9, rdi
        mov     r10, rsi
        test    rsi, rsi
        jz      77f
        xor     edi, edi
        mov     eax, 96
        syscall
        test    eax, eax
        jnz     78f
    77: xor     eax, eax
        test    r9, r9
        jz      78f
        xor     edi, edi
        mov     rsi, r9
        mov     eax, 228
        syscall
        test    eax, eax
        jnz     78f
        lea     r8, [rip + harness_clock_code + 24]
        harness_clock_sum
        harness_clock_show
        harness_clock_split
        mov     [rsi], rax
        mov     eax, edx
        xor     edx, edx
        mov     ecx, 1000
        div     ecx
        mov     [rsi + 8], rax
        xor     eax, eax
    78: ret

        .p2align 4
    harness_clock_time:
        mov     r9, rdi
        mov     r10, rsi
        lea     rsi, [rsp - 16]
        mov     edi, 5
        mov     eax, 228
        syscall
        cdqe
        test    eax, eax
        jnz     78f
        lea     r8, [rip + harness_clock_code + 24]
        harness_clock_sum
        harness_clock_show
        harness_clock_split
        test    r9, r9
        jz      78f
        mov     [r9], rax
    78: ret

    // The arithmetic alone, for the test that holds it against the same in Rust: rdi said, rsi numbers.
        .p2align 4
    harness_clock_shown:
        mov     rax, rdi
        mov     r8, rsi
        harness_clock_show
        ret
    harness_clock_end:
    .popsection
    "#
);

// SAFETY: symbols of the assembly above; only their addresses are taken, and the bytes between the first and the last
// are read.
unsafe extern "C" {
    static harness_clock_code: u8;
    static harness_clock_gettime: u8;
    static harness_clock_gettimeofday: u8;
    static harness_clock_time: u8;
    static harness_clock_shown: u8;
    static harness_clock_end: u8;
}

/// The replaced functions, by their names in a vDSO.
pub(super) const FUNCTIONS: [&str; 3] = ["__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time"];

/// The length of the jump at the beginning of each function.
pub(super) const JUMP_LEN: usize = 5;

/// The length of the two instructions that save a function's arguments.
const KEEPING_LEN: usize = 6;

/// The registers of a thread inside the code that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inside {
    pub rip: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub r9: u64,
    pub r10: u64,
}

/// The code as assembled into this program.
#[derive(Debug, Clone)]
pub(super) struct Code {
    bytes: &'static [u8],
    /// The offset of each of [`FUNCTIONS`] in the code.
    functions: [Range<usize>; 3],
}

impl Code {
    pub fn new() -> Code {
        let start = &raw const harness_clock_code;
        let at = |symbol: *const u8| symbol.addr() - start.addr();
        let [gettime, gettimeofday, time, shown, end] = [
            at(&raw const harness_clock_gettime),
            at(&raw const harness_clock_gettimeofday),
            at(&raw const harness_clock_time),
            at(&raw const harness_clock_shown),
            at(&raw const harness_clock_end),
        ];
        // SAFETY: the assembly defines both symbols in one section, which is mapped for as long as this program runs
        // and never written.
        let bytes = unsafe { std::slice::from_raw_parts(start, end) };
        Code { bytes, functions: [gettime..gettimeofday, gettimeofday..time, time..shown] }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes to write into a vDSO.
    pub fn with(&self, slot: &Slot) -> Vec<u8> {
        let mut bytes = slot.to_bytes().to_vec();
        bytes.extend(&self.bytes[SLOT_LEN..]);
        bytes
    }

    /// Returns the slot, if these bytes are this code with a slot before it.
    pub fn slot(&self, bytes: &[u8]) -> Option<Slot> {
        let slot = Slot::from_bytes(bytes.get(..SLOT_LEN)?)?;
        (bytes[SLOT_LEN..] == self.bytes[SLOT_LEN..]).then_some(slot)
    }

    /// Returns the jump from the beginning of function `which` at `entry` to the code at `code`, both in one small
    /// mapping.
    pub fn jump(&self, which: usize, entry: usize, code: usize) -> [u8; JUMP_LEN] {
        let to = code + self.functions[which].start;
        let by = (to as i64 - (entry + JUMP_LEN) as i64) as i32;
        let [a, b, c, d] = by.to_le_bytes();
        [0xe9, a, b, c, d]
    }

    /// Returns the registers that move a thread in the code at `code` back to the beginning of its call. None if the
    /// thread is elsewhere.
    pub fn rewound(&self, thread: Inside, code: u64, entries: &[u64; 3]) -> Option<Inside> {
        let at = usize::try_from(thread.rip.checked_sub(code)?).ok()?;
        let which = self.functions.iter().position(|function| function.contains(&at))?;
        let kept = at >= self.functions[which].start + KEEPING_LEN;
        let (rdi, rsi) = if kept { (thread.r9, thread.r10) } else { (thread.rdi, thread.rsi) };
        Some(Inside { rip: entries[which], rdi, rsi, ..thread })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::slot::Clock, *};

    /// Draws reproducible numbers (xorshift).
    struct Draw(u64);

    impl Draw {
        fn up_to(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }

        fn around(&mut self, end: i64) -> i64 {
            self.up_to(2 * end as u64) as i64 - end
        }
    }

    #[test]
    fn the_assembly_shows_what_the_arithmetic_in_rust_shows() {
        // SAFETY: the symbol is a function of the assembly above that takes a number and the address of five numbers.
        let shown: extern "C" fn(i64, *const u8) -> i64 =
            unsafe { std::mem::transmute(&raw const harness_clock_shown) };
        let mut draw = Draw(42);
        for _ in 0..100_000 {
            let said = draw.up_to(2_000_000_000_000_000_000) as i64;
            let clock = Clock {
                base_ns: draw.around(1_000_000_000_000_000_000),
                since_ns: said - draw.around(1_000_000_000_000_000),
                rate: draw.around(1 << 32),
                strobe_by_ns: draw.around(100_000_000_000),
                strobe_period_ns: [0, 1, 1_000_000, 999_999_999][draw.up_to(4) as usize],
            };
            assert_eq!(shown(said, clock.to_bytes().as_ptr()), clock.shows_ns(said), "{said} by {clock:?}");
        }
    }

    #[test]
    fn a_thread_is_put_back_with_the_arguments_of_its_call_wherever_it_is() {
        let (code, entries) = (Code::new(), [0x1000, 0x2000, 0x3000]);
        for (which, function) in code.functions.clone().into_iter().enumerate() {
            for at in function.clone() {
                let rip = 0x8000 + at as u64;
                let kept = at >= function.start + KEEPING_LEN;
                let inside = if kept {
                    Inside { rip, rdi: 7, rsi: 7, r9: 1, r10: 2 }
                } else {
                    Inside { rip, rdi: 1, rsi: 2, r9: 7, r10: 7 }
                };
                let back = code.rewound(inside, 0x8000, &entries).unwrap();
                assert_eq!((back.rip, back.rdi, back.rsi), (entries[which], 1, 2), "{at:#x}");
            }
        }
        let outside = Inside { rip: 0x8000, rdi: 0, rsi: 0, r9: 0, r10: 0 };
        assert_eq!(code.rewound(outside, 0x8000, &entries), None, "the slot is no code");
    }

    #[test]
    fn the_code_keeps_arguments_first_and_never_again() {
        let code = Code::new();
        for function in &code.functions {
            let bytes = &code.bytes[function.clone()];
            assert_eq!(bytes[..KEEPING_LEN], [0x49, 0x89, 0xf9, 0x49, 0x89, 0xf2], "mov r9, rdi; mov r10, rsi");
        }
        assert!(code.len() <= 1024, "{} bytes: must fit behind the text of any vDSO", code.len());
    }
}
