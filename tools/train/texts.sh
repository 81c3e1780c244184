#!/bin/sh
# Fetches the texts that the models read besides generated tasks, from Debian packages, and writes them as plain files:
#
#   tools/train/texts.sh OUTDIR
#
# The King James Bible (bible-kjv-text), WordNet glosses (wordnet-base), The Devil's Dictionary (dict-devil), names
# and two American founding documents (miscfiles). No package is installed; they are downloaded and unpacked.
set -eu
out=$1
mkdir -p "$out/deb" "$out/root"
out=$(cd "$out" && pwd)
cd "$out/deb"
for package in bible-kjv-text bible-kjv wordnet-base dict-devil miscfiles; do
    ls "${package}"_*.deb >/dev/null 2>&1 || apt-get download -q "$package" >/dev/null
    dpkg-deb -x "$package"_*.deb "$out/root"
done
cd "$out"
root/usr/bin/bible -d root/usr/lib/bible.data 'Genesis 1:1 - Revelation 22:21' >kjv.txt
cp root/usr/share/wordnet/data.* root/usr/share/wordnet/cntlist.rev .
zcat root/usr/share/dictd/devil.dict.dz >devil.txt
zcat root/usr/share/state/us-declaration.gz root/usr/share/state/us-constitution.gz >state.txt
zcat root/usr/share/dict/propernames.gz >names.txt
