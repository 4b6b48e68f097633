#!/usr/bin/env bash
# Makes what compose.yaml reads as secrets: passwords, the two URLs that hold them, and the broker's certificate.
# usage: docker/make-secrets.sh [FOLDER]    (default: secrets/ beside this script)
# What exists is kept: delete a file, and it is made anew (see "Rotate" in docs/how-to/operate.md).
set -euo pipefail
folder=${1:-"$(cd "$(dirname "$0")" && pwd)/secrets"}
mkdir -p "$folder"
# Compose mounts single files with the modes that they have here, and each container has a user of its own.
# So the files can be read, and the folder keeps this machine's other users out.
chmod 700 "$folder"
umask 022
cd "$folder"

password() { [ -s "$1" ] || openssl rand -hex 32 > "$1"; }

password database_password
password broker_password
printf 'postgresql+psycopg://firstbad:%s@database:5432/firstbad\n' "$(cat database_password)" > database_url
printf 'rediss://:%s@broker:6379/0\n' "$(cat broker_password)" > broker_url
printf 'requirepass %s\n' "$(cat broker_password)" > broker_auth.conf

if [ ! -s broker_ca.pem ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -sha256 -nodes -days 3650 -subj '/CN=firstbad broker authority' \
    -addext 'keyUsage=critical,keyCertSign,cRLSign' -keyout ca_key.pem -out broker_ca.pem 2>/dev/null
  chmod 600 ca_key.pem
  rm -f broker_cert.pem
fi
if [ ! -s broker_cert.pem ]; then
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -sha256 -nodes -subj '/CN=broker' -keyout broker_key.pem -out broker.csr 2>/dev/null
  openssl x509 -req -in broker.csr -CA broker_ca.pem -CAkey ca_key.pem -CAcreateserial -sha256 -days 825 \
    -extfile <(printf '%s\n' 'subjectAltName=DNS:broker,DNS:localhost,IP:127.0.0.1' 'extendedKeyUsage=serverAuth' \
      'basicConstraints=critical,CA:FALSE') -out broker_cert.pem 2>/dev/null
  chmod 644 broker_key.pem
  rm -f broker.csr
fi
echo "secrets are in $folder"
