# The folders' one-way link graph, and the functions that hold every target to it.
#
# A folder's headers are included as "shm/lane.h". They are visible only to targets that link the folder's
# library: each library publishes a private include root that holds one link to its own folder and nothing else,
# so `#include "supervisor/..."` from anywhere else does not compile.

# folder library -> the libraries of ours that it may link
set(MR_MAY_LINK_mr_base "")
set(MR_MAY_LINK_mr_shm mr_base)
set(MR_MAY_LINK_mr_store mr_base)
set(MR_MAY_LINK_mr_worker mr_shm mr_base mr_store)
set(MR_MAY_LINK_mr_supervisor mr_shm mr_base)
set(MR_MAY_LINK_mr_devstore mr_base)

function(_mr_options target)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE MR_VERSION="${PROJECT_VERSION}")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wpointer-arith -Wvla
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
    $<$<BOOL:${MR_WERROR}>:-Werror>)
  if(MR_FUZZ) # coverage for libFuzzer, which tests/fuzz links
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(MR_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MR_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE -fsanitize=${MR_SANITIZE})
  endif()
endfunction()

# mr_add_library(mr_shm FOLDER shm SOURCES ... LINKS mr_base PRIVATE_LINKS PkgConfig::LZ4)
function(mr_add_library target)
  cmake_parse_arguments(A "" "FOLDER" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  foreach(link IN LISTS A_LINKS)
    if(NOT link IN_LIST MR_MAY_LINK_${target})
      message(FATAL_ERROR "${target} must not link ${link}: see cmake/MrTargets.cmake for the link graph")
    endif()
  endforeach()
  add_library(${target} STATIC ${A_SOURCES})
  _mr_options(${target})
  set(root ${CMAKE_BINARY_DIR}/include-roots/${target})
  get_filename_component(parent "${root}/${A_FOLDER}" DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${A_FOLDER} ${root}/${A_FOLDER} SYMBOLIC)
  target_include_directories(${target} PUBLIC ${root})
  target_link_libraries(${target} PUBLIC ${A_LINKS} PRIVATE ${A_PRIVATE_LINKS})
endfunction()

# mr_add_program(millrace SOURCES main.c LINKS mr_supervisor)
function(mr_add_program target)
  cmake_parse_arguments(A "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${target} ${A_SOURCES})
  _mr_options(${target})
  target_link_libraries(${target} PRIVATE ${A_LINKS})
endfunction()

# mr_add_test(lane SOURCES test_lane.c LINKS mr_shm [ARGS ...] [TIMEOUT s]): a C program that ctest runs.
function(mr_add_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;LINKS;ARGS;LABELS" ${ARGN})
  add_executable(test_${name} ${A_SOURCES})
  _mr_options(test_${name})
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(test_${name} PRIVATE ${A_LINKS} PkgConfig::CHECK)
  add_test(NAME ${name} COMMAND test_${name} ${A_ARGS})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  # check ends a case after 4 s by itself, which a busy machine may need for a good one.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT CK_DEFAULT_TIMEOUT=60)
endfunction()
