//! Judges a history of Jepsen, Knossos or Porcupine: `cargo run -p linearizability --example others -- FILE [INITIAL]`.

use std::{env, error::Error, fs::File};

use linearizability::{Asked, Format, Verdict, check, read};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let path = args.next().ok_or("usage: others FILE [INITIAL]")?;
    let initial = args.next();
    let format = if path.ends_with(".edn") { Format::JepsenEdn } else { Format::PorcupineLog };
    let asked = Asked { model: None, initial: initial.as_deref() };
    let (history, options) = read(format, File::open(&path)?, asked)?;
    match check(&history, &options) {
        Verdict::Linearizable => println!("linearizable as a {}", options.model.name()),
        Verdict::NotLinearizable(conflict) => println!("not linearizable: {}", conflict.words(&history)),
        Verdict::Inconclusive(reason) => println!("inconclusive: {reason}"),
    }
    Ok(())
}
