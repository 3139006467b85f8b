# Sourced by quickstart and check.

# packages_of GROUP...: the names in these groups of packages.txt.
packages_of() {
  local here group
  here=$(dirname "${BASH_SOURCE[0]}")
  for group in "$@"; do
    sed -n "/^\[$group\]/,/^\[/{/^[^[#]/p}" "$here/packages.txt"
  done
}

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

# install_packages NAME...: those that are missing; false with a message when that cannot be done.
install_packages() {
  command -v dpkg-query >/dev/null || {
    echo "This is not Debian; what is needed is listed in tools/packages.txt." >&2
    return 1
  }
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return 0
  local root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "Packages are missing and this is neither root nor is there sudo. As root, run:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      return 1
    }
    root=(sudo)
  fi
  echo "Installing ${missing[*]}"
  local log
  log=$(mktemp)
  # Only where the lists are too old to have a package are they fetched again. Services that come with a package are not
  # wanted here: the tests start what they need.
  if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1 &&
    ! { "${root[@]}" apt-get update -q >"$log" 2>&1 &&
      "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1; }; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}
