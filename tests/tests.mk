# The test programs and the kinds of test; included by the Makefile. tests/README.md is the map.

# tests/<layer>/test_*.c is one cmocka program each; drive_*.c is a program that a Python test calls; any other .c there
# is support that the programs of its layer and of those above may use.
TEST_SOURCES   := $(foreach l,$(LAYERS),$(sort $(wildcard tests/$l/test_*.c)))
DRIVER_SOURCES := $(foreach l,$(LAYERS),$(sort $(wildcard tests/$l/drive_*.c)))
programs = $(patsubst tests/%.c,$O/tests/%,$1)

support_sources = $(filter-out $(TEST_SOURCES) $(DRIVER_SOURCES),$(sort $(wildcard tests/$1/*.c)))
support = $(foreach l,$(call upto,$1,$(LAYERS)),$(if $(call support_sources,$l),$O/tests/$l/libsupport.a)) $O/tests/libsupport.a

# Programs named *_alloc call these through tests/alloc_fail.c, which can refuse the n-th call.
WRAPPED := malloc calloc realloc aligned_alloc posix_memalign strdup strndup
wrap = $(if $(filter %_alloc,$1),$(addprefix -Wl$(comma)--wrap=,$(WRAPPED)))
comma := ,
# A compiler may leave out an allocation whose result it sees unused.
$O/tests/%_alloc.o: CFLAGS += -fno-builtin

$O/tests/libsupport.a: $O/tests/alloc_fail.o
	@rm -f $@ && $(AR) rcs $@ $^

define test_rules
$(if $(call support_sources,$1),$O/tests/$1/libsupport.a: $(patsubst %.c,$O/%.o,$(call support_sources,$1))
	@rm -f $$@ && $(AR) rcs $$@ $$^)

$O/tests/$1/%: $O/tests/$1/%.o $O/tests/sanitizer_options.o $(call support,$1) $(call archives,$1)
	$$(link) $$(filter %.o,$$^) $$(call wrap,$$@) -Wl,--start-group $(call support,$1) $(call archives,$1) -Wl,--end-group \
	    $(CUDA_LIBS) $(LDLIBS) -lcmocka
endef
$(foreach l,$(LAYERS),$(eval $(call test_rules,$l)))

# ---- fuzzing: tests/fuzz/fuzz_<name>.c defines LLVMFuzzerTestOneInput; its corpus is tests/fuzz/corpus/<name>/ ----
FUZZ_SOURCES := $(sort $(wildcard tests/fuzz/fuzz_*.c))
REPLAYS      := $(patsubst tests/fuzz/fuzz_%.c,$O/tests/fuzz/replay_%,$(FUZZ_SOURCES))
FUZZERS      := $(patsubst tests/fuzz/fuzz_%.c,$O/tests/fuzz/search_%,$(FUZZ_SOURCES))
# A fuzz target links the highest layer that it includes, and those below.
fuzz_layer = $(lastword $(foreach l,$(LAYERS),$(filter $l,$(shell sed -n 's|^\#include "\([a-z]*\)/.*|\1|p' $1))))

define fuzz_rules
$O/tests/fuzz/replay_$1: $O/tests/fuzz/fuzz_$1.o $O/tests/fuzz/replay.o $O/tests/sanitizer_options.o $(call archives,$2)
	$$(link) $$(filter %.o,$$^) -Wl,--start-group $(call archives,$2) -Wl,--end-group $(CUDA_LIBS) $(LDLIBS)
$O/tests/fuzz/search_$1: $O/tests/fuzz/fuzz_$1.o $O/tests/sanitizer_options.o $(call archives,$2)
	$$(link) -fsanitize=fuzzer $$(filter %.o,$$^) -Wl,--start-group $(call archives,$2) -Wl,--end-group $(LDLIBS)
endef
$(foreach f,$(FUZZ_SOURCES),$(eval $(call fuzz_rules,$(patsubst fuzz_%,%,$(basename $(notdir $f))),$(call fuzz_layer,$f))))

# ---- kinds ----
TEST_KINDS := style host asan tsan golden gate kernel-contract python http server-security replicas pull-security fuzz
JOBS       := $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
PYTHON     := $(or $(wildcard .venv/bin/python),python3)
# A sanitizer's build folder: beside the usual one, or beside the O that was given.
folder = $(if $(filter build/%,$O),build/$1,$O-$1)
# Builds as much of $1 as can be built; what could not is a failed test, not the end of the run.
build_all = $(if $(strip $1),+@$(MAKE) -s --no-print-directory -k $(JOBS) $1 || true)
# Folders whose tests only compute: they wait for nothing, limit no time but their own processor's, and share no file
# that one of them writes.
TOGETHER := format ops cpu memory model
run_kind = @TF_BUILD=$O TOKENFOLD=$O/tokenfold PYTHON=$(PYTHON) TF_TOGETHER="$(TOGETHER)" tools/run_tests.sh $1

HOST_SOURCES := $(filter-out $(foreach l,$(LAYERS),tests/$l/test_golden%),$(TEST_SOURCES))
HOST_TESTS   := $(call programs,$(HOST_SOURCES))
TSAN_TESTS   := $(call programs,$(filter tests/base/% tests/engine/% tests/server/%,$(HOST_SOURCES)))
GOLDEN_TESTS := $(call programs,$(filter-out $(HOST_SOURCES),$(TEST_SOURCES))) $(sort $(wildcard tests/golden/test_*.py tests/golden/test_*.sh))
CLIENT_TESTS := $(sort $(wildcard tests/client/test_*.py))
HTTP_TESTS   := $(wildcard tests/http/run.sh) $(sort $(wildcard tests/http/test_*.py tests/http/test_*.sh)) $(CLIENT_TESTS)
REPLICA_TESTS  := $(sort $(wildcard tests/replicas/test_*.py))
SECURITY_TESTS := $(sort $(wildcard tests/security/test_*.py))
PULL_TESTS   := $(sort $(wildcard tests/pull/test_*.py))
PYTHON_TESTS := $(foreach l,$(LAYERS) tools,$(sort $(wildcard tests/$l/test_*.py)))
DRIVERS      := $(call programs,$(DRIVER_SOURCES))
scripts       = $(filter %.py %.sh,$1)
binaries      = $(filter-out %.py %.sh,$1)

.PHONY: tests test $(addprefix test-,$(TEST_KINDS)) sanitized replays searches abuse soak fuzz eval
tests: $(call programs,$(TEST_SOURCES)) $(DRIVERS)

test:
	@./setup.sh test
	@echo "CUDA code: $(if $(CUDA_SKIPPED),skipped ($(CUDA_SKIPPED)),compiled by $(NVCC) $(NVCC_MAJOR))"
	+@MAKE="$(MAKE)" tools/run_tests.sh --all $(TEST_KINDS)

test-style:
	$(call run_kind,style) tools/style.sh tools/layers.sh

# Tests of the model and the engine read the golden checkpoints.
test-host:
	@tools/unpack_golden.sh
	$(call build_all,$(HOST_TESTS))
	$(call run_kind,host) $(HOST_TESTS)

# `sanitized` is what test-asan and test-tsan make in the sanitizer's own variant.
test-asan:
	+@$(MAKE) --no-print-directory VARIANT=asan O=$(call folder,asan) KIND=asan sanitized
test-tsan:
	+@$(MAKE) --no-print-directory VARIANT=tsan O=$(call folder,tsan) KIND=tsan sanitized
SANITIZED_TESTS = $(if $(filter tsan,$(KIND)),$(TSAN_TESTS),$(filter-out $O/tests/cuda/%,$(HOST_TESTS)))
# The thread sanitizer's shadow memory wants addresses that a strongly randomised layout may take.
sanitized: export TF_RUN_WITH := $(if $(filter tsan,$(KIND)),$(shell setarch -R true 2>/dev/null && echo setarch -R))
sanitized:
	@tools/unpack_golden.sh
	$(call build_all,$(SANITIZED_TESTS))
	$(call run_kind,$(KIND)) $(SANITIZED_TESTS)

test-golden:
	@tools/unpack_golden.sh
	$(call build_all,$(call binaries,$(GOLDEN_TESTS)) $(if $(call scripts,$(GOLDEN_TESTS)),build/tokenfold))
	$(call run_kind,golden) $(GOLDEN_TESTS)

# Pairs of settings first, as far as the time goes; and proof that each gate can turn red. `tokenfold gate` runs it all.
# moe-realdims-mlx4 is of the shape that a GPU's fused feed-forward block with experts takes; the others are not.
GATES := $(foreach m,fold-s fold-moe,"$O/tokenfold gate all models/$m --no-progress --budget 90") \
         $(foreach m,dense-mlx4-g32 moe-mlx4-g64,"$O/tokenfold gate all build/golden/$m --no-progress --budget 30" \
         "$O/tokenfold gate all build/golden/$m --no-progress --controls") \
         "$O/tokenfold gate all build/golden/moe-realdims-mlx4 --no-progress --budget 30" \
         "$O/tokenfold gate drafts models/fold-s --no-progress --controls"
test-gate:
	@tools/unpack_golden.sh
	$(call build_all,build/tokenfold)
	$(call run_kind,gate) $(GATES)

test-kernel-contract: export NVCC := $(NVCC)
test-kernel-contract:
	$(call build_all,build/tf-cpu-test $(if $(CUDA_SKIPPED),,build/tf-cuda-test))
	$(call run_kind,kernel-contract) "$O/tf-cpu-test all" \
	    $(if $(CUDA_SKIPPED),,"$O/tf-cuda-test all" "tools/cuda_resources.sh 90 $O/src/cuda")

test-python:
	$(call build_all,$(DRIVERS) $(if $(PYTHON_TESTS),build/tokenfold))
	$(call run_kind,python) $(PYTHON_TESTS)

test-http:
	$(call build_all,build/tokenfold)
	$(call run_kind,http) $(HTTP_TESTS)

# Two replicas behind each proxy that is installed; by itself it brings the proxies.
test-replicas:
	@$(if $(TF_RESULTS),,./setup.sh replicas)
	$(call build_all,build/tokenfold)
	$(call run_kind,replicas) $(REPLICA_TESTS)

# These say what they tried or found.
test-server-security test-replicas test-pull-security: export TF_SHOW := 1
test-server-security:
	$(call build_all,build/tokenfold)
	$(call run_kind,server-security) $(SECURITY_TESTS)

test-pull-security:
	$(call build_all,build/tokenfold)
	$(call run_kind,pull-security) $(PULL_TESTS)

# The corpora are replayed under the address sanitizer, without libFuzzer.
test-fuzz:
	+@$(MAKE) --no-print-directory VARIANT=asan O=$(call folder,asan) replays
replays:
	$(call build_all,$(REPLAYS))
	$(call run_kind,fuzz) $(REPLAYS)

# ---- longer ones, by name ----
# Hundreds of random schemas asked of both shipped models, and what that costs the others; `make test` asks for a few.
.PHONY: test-structured
test-structured: export TF_STRUCTURED ?= 500
test-structured:
	@./setup.sh test
	$(call build_all,build/tokenfold)
	$(call run_kind,structured) $(filter %structured.py,$(CLIENT_TESTS))

# Checkpoints are mangled under the sanitizers, requests sent to the program as it is served.
abuse: export TOKENFOLD_ASAN := $(call folder,asan)/tokenfold
# Longer than what a test may take.
soak: export TEST_TIMEOUT := 9000
abuse soak:
	@./setup.sh test
	@tools/unpack_golden.sh
	$(call build_all,build/tokenfold)
	$(if $(filter abuse,$@),+@$(MAKE) -s --no-print-directory $(JOBS) VARIANT=asan O=$(call folder,asan) $(TOKENFOLD_ASAN) || true)
	$(call run_kind,$@) $(sort $(wildcard tests/$@/test_*.py tests/$@/test_*.sh))

# Every cell of the gates on both shipped models; `make test` takes those that a budget has room for.
.PHONY: gates
gates:
	$(call build_all,build/tokenfold)
	@tools/gate_all.sh $O/tokenfold models/fold-s models/fold-moe

# Hundreds of held-out items of each skill, asked of both models through the server; writes their eval.json.
EVAL_ITEMS ?= 200
eval:
	@./setup.sh test
	$(call build_all,build/tokenfold)
	@for model in fold-s fold-moe; do \
	    TOKENFOLD=$O/tokenfold $(PYTHON) tools/eval/run.py models/$$model --items $(EVAL_ITEMS) --out models/$$model/eval.json || failed=1; \
	done; exit $${failed:-0}

FUZZ_SECONDS ?= 60
fuzz:
	@./setup.sh test
	+@$(MAKE) --no-print-directory VARIANT=fuzz CC=$(or $(shell command -v clang-14),clang) O=$(call folder,fuzz) searches
searches: $(if $(FUZZ),$O/tests/fuzz/search_$(FUZZ),$(FUZZERS))
	@tools/fuzz.sh $O $(FUZZ_SECONDS) $^
