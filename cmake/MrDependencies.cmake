# Third-party libraries, all from Debian 12 / Ubuntu 22.04+. scripts/setup installs them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl>=7.81)
pkg_check_modules(OPENSSL REQUIRED IMPORTED_TARGET openssl)
pkg_check_modules(LZ4 REQUIRED IMPORTED_TARGET liblz4)
pkg_check_modules(UUID REQUIRED IMPORTED_TARGET uuid)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(EXPAT REQUIRED IMPORTED_TARGET expat)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(FUSE3 IMPORTED_TARGET fuse3>=3.10) # of millrace-mount alone
pkg_search_module(MSGPACK REQUIRED IMPORTED_TARGET msgpack-c msgpack)
# Version 6 of the package (Debian 13, Ubuntu 24.04) says "includedir=include": the header's real place instead.
find_path(MSGPACK_HEADER_DIR msgpack.h REQUIRED)
set_target_properties(PkgConfig::MSGPACK PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${MSGPACK_HEADER_DIR}")
if(MR_DEVSTORE)
  pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
endif()
if(MR_TESTS)
  pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
endif()
# toml++ is header-only; Debian ships a pkg-config file, some Ubuntu releases only the headers.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
