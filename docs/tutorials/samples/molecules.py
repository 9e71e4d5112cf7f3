"""Writes 20,000 made-up molecules, and Crippen's logP of 2,500 of them; the tutorial on molecules uses both.

pip install rdkit
"""

import csv
import random

from rdkit import Chem, RDLogger
from rdkit.Chem import Crippen

MOLECULES, TRAIN, VALIDATION = 20_000, 2_000, 500
CORES = (
    "c1ccccc1 c1ccncc1 C1CCCCC1 C1CCNCC1 c1ccc2ccccc2c1 c1ccc2[nH]ccc2c1 C1COCCN1 c1ccsc1 c1cnc[nH]1 CC CCC CCCC CCN "
    "CCO C1CCCC1 c1ccoc1 C1CC1 c1ccc(-c2ccccc2)cc1"
).split()
GROUPS = (
    "C CC C(C)C O OC N NC N(C)C F Cl Br C(=O)O C(=O)OC C(=O)N C#N S(=O)(=O)N C(F)(F)F CO CCN OCC C(=O)C [N+](=O)[O-] "
    "SC CCO NC(=O)C"
).split()


def add(molecule: Chem.RWMol, smiles: str, *, anywhere: bool) -> None:
    """Bonds a part to a random atom; by its own first atom, or anywhere."""
    size = molecule.GetNumAtoms()
    molecule.InsertMol(Chem.MolFromSmiles(smiles))
    molecule.UpdatePropertyCache(False)
    free = [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetNumImplicitHs() > 0]
    old = [place for place in free if place < size]
    if old:
        begin = random.choice(old)
        end = random.choice([place for place in free if place >= size]) if anywhere else size
        molecule.AddBond(begin, end, Chem.BondType.SINGLE)


def molecule() -> str:
    made = Chem.RWMol(Chem.MolFromSmiles(random.choice(CORES)))
    if random.random() < 0.5:
        add(made, random.choice(CORES), anywhere=True)
    for _ in range(random.randint(0, 3)):
        add(made, random.choice(GROUPS), anywhere=False)
    Chem.SanitizeMol(made)
    return Chem.MolToSmiles(made)


RDLogger.DisableLog("rdApp.*")
random.seed(0)
molecules: dict[str, float] = {}
while len(molecules) < MOLECULES:
    try:
        smiles = molecule()
    except (ValueError, RuntimeError):  # an atom with too many bonds, or none left for one
        continue
    if "." not in smiles:
        molecules[smiles] = Crippen.MolLogP(Chem.MolFromSmiles(smiles))

with open("molecules.smi", "w", encoding="utf-8") as file:
    file.writelines(f"{smiles}\n" for smiles in molecules)
rows = [(smiles, f"{value:.2f}") for smiles, value in molecules.items()]
for name, part in (("logp.csv", rows[:TRAIN]), ("logp-dev.csv", rows[TRAIN : TRAIN + VALIDATION])):
    with open(name, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("smiles", "logP"), *part])
