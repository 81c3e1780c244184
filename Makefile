# make            build/tokenfold, a release build           make serve   set up, build, serve the default model
# make test       set up, build, run every test              make help    the other targets
# VARIANT=debug|release|asan|tsan|fuzz chooses a variant under build/<variant>/; CUDA=0 leaves out the CUDA code.

VARIANT ?= release
O       ?= build/$(VARIANT)
VERSION := 0.1.0
ifeq ($(origin CC),default)
CC := gcc
endif

# A layer may use those before it (tools/layers.sh checks the includes).
LAYERS := base format ops cpu cuda memory model engine gate measure server hub cli

WARN    := -Wall -Wextra -Wshadow -Werror -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS  += -std=c17 -D_GNU_SOURCE -Isrc -I. $(WARN) -fno-math-errno -ffp-contract=off -fno-common -pthread -DTF_VERSION='"$(VERSION)"'
LDLIBS  := -lmicrohttpd -ljansson -lutf8proc -lpcre2-8 -lxxhash -lcrypto -lcurl -ledit -lpthread -lm
CURL    := 1
# libcurl has no static archive that links without a dozen others: what is carried elsewhere does not download.
ifeq ($(STATIC),1)
CURL    := 0
LDLIBS  := -Wl,-Bstatic -lmicrohttpd -ljansson -lutf8proc -lpcre2-8 -lxxhash -lcrypto -ledit -ltinfo -lbsd -lmd -Wl,-Bdynamic \
           -lgnutls -lpthread -ldl -lm
endif

CFLAGS  += -DTF_CURL=$(CURL)

FLAGS_release := -O2 -g
FLAGS_debug   := -O0 -g3 -DTF_DEBUG
FLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan    := -O1 -g -fsanitize=thread
FLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
ifeq ($(FLAGS_$(VARIANT)),)
$(error VARIANT must be release, debug, asan, tsan or fuzz)
endif

# ---- CUDA: compiled where nvcc 13 or newer is found; otherwise CUDA_SKIPPED says why not ----
NVCC := $(or $(NVCC),$(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(CUDA),0)
CUDA_SKIPPED := CUDA=0 was given
else ifneq ($(filter asan tsan fuzz,$(VARIANT)),)
CUDA_SKIPPED := a $(VARIANT) build checks host code only
else ifeq ($(NVCC),)
CUDA_SKIPPED := no nvcc was found
else ifeq ($(shell command -v g++),)
CUDA_SKIPPED := nvcc needs g++, which was not found
else
NVCC_MAJOR := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
ifneq ($(shell test "0$(NVCC_MAJOR)" -ge 13 && echo new),new)
CUDA_SKIPPED := nvcc 13 or newer is needed and $(NVCC) is $(or $(NVCC_MAJOR),of an unknown version)
endif
endif
CUDA_SOURCES := $(sort $(wildcard src/cuda/*.cu))
CUDA_ALL     := 80 86 89 90 100 120 121
NVCCFLAGS     = -std=c++17 -O3 -lineinfo -Isrc -I. -Xcompiler -Wall,-Wextra,-fno-threadsafe-statics -Werror all-warnings -DTF_CUDA=1
ifeq ($(CUDA_SKIPPED),)
CUDA_OBJECTS := $(patsubst %.cu,$O/%.o,$(CUDA_SOURCES))
CUDA_LIBS    := -L$(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))/lib64 -lcudart_static -ldl -lrt
CFLAGS       += -DTF_CUDA=1
else
CFLAGS       += -DTF_CUDA=0
endif
CFLAGS  += $(FLAGS_$(VARIANT))
LDFLAGS += $(FLAGS_$(VARIANT)) -pthread

# Files under src/cpu/x86 are compiled for the instruction set that their names end in; everything else is baseline x86-64.
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl
ISA_vnni   := $(ISA_avx512) -mavx512vnni
ISA_bf16   := $(ISA_avx512) -mavx512bf16
ISA_amx    := $(ISA_bf16) -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16
isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $1)))))

sources = $(sort $(wildcard src/$1/*.c src/$1/x86/*.c))
objects = $(patsubst %.c,$O/%.o,$(call sources,$1)) $(if $(filter cuda,$1),$(CUDA_OBJECTS))
# The archives that a program of layer $1 links: its own and those of all layers before it.
upto = $(if $(filter $1,$(firstword $2)),$(firstword $2),$(firstword $2) $(if $2,$(call upto,$1,$(wordlist 2,99,$2))))
archives = $(foreach l,$(call upto,$1,$(LAYERS)),$(if $(strip $(call objects,$l)),$O/lib$l.a))
link = @echo "  link  $@" && $(CC) $(LDFLAGS) -o $@

MAIN_OBJECTS := $O/src/cli/main.o

.PHONY: all
all: build/tokenfold $(if $(wildcard check/*.c),build/tf-cpu-test)

# build/NAME points at the build of it that was asked for last.
.PHONY: build/tokenfold build/tf-cpu-test build/tf-cuda-test build/tf-cpu-bench build/tf-cuda-bench
build/tokenfold build/tf-cpu-test build/tf-cuda-test build/tf-cpu-bench build/tf-cuda-bench: build/%: $O/%
	@mkdir -p build
	@ln -sf $(patsubst build/%,%,$O)/$* $@

$O/tokenfold: $(MAIN_OBJECTS) $(call archives,cli)
	$(if $(CUDA_SKIPPED),@echo "  cuda  skipped: $(CUDA_SKIPPED)")
	$(link) $(MAIN_OBJECTS) -Wl,--start-group $(call archives,cli) -Wl,--end-group $(CUDA_LIBS) $(LDLIBS)

# The kernel contract links no third-party library: it also builds where there is only a compiler, make and nvcc.
CHECK_SOURCES  := $(filter-out $(wildcard check/registry_*.c),$(sort $(wildcard check/*.c)))
CHECK_OBJECTS  := $(patsubst %.c,$O/%.o,$(CHECK_SOURCES) check/registry_cpu.c)
CHECK_ARCHIVES := $(filter-out $O/libformat.a,$(call archives,cuda))
$O/tf-cpu-test: $(CHECK_OBJECTS) $(CHECK_ARCHIVES)
	$(link) $(CHECK_OBJECTS) -Wl,--start-group $(CHECK_ARCHIVES) -Wl,--end-group $(CUDA_LIBS) -lpthread -lm

# The same cases on the first GPU. Builds where there are only nvcc and make; says why when there is no nvcc.
CUDA_CHECK_OBJECTS := $(patsubst %.c,$O/%.o,$(CHECK_SOURCES) check/registry_cuda.c)
$O/tf-cuda-test: $(CUDA_CHECK_OBJECTS) $(CHECK_ARCHIVES)
	$(if $(CUDA_SKIPPED),$(error tf-cuda-test needs the CUDA code: $(CUDA_SKIPPED)))
	$(link) $(CUDA_CHECK_OBJECTS) -Wl,--start-group $(CHECK_ARCHIVES) -Wl,--end-group $(CUDA_LIBS) -lpthread -lm

# Times of the CPU's operations at real shapes. Its measurements of arithmetic are compiled for what their names end in.
BENCH_OBJECTS := $(patsubst %.c,$O/%.o,$(filter-out bench/kernels_cuda%,$(sort $(wildcard bench/*.c))))
$O/tf-cpu-bench: $(BENCH_OBJECTS) $(CHECK_ARCHIVES)
	$(link) $(BENCH_OBJECTS) -Wl,--start-group $(CHECK_ARCHIVES) -Wl,--end-group $(CUDA_LIBS) -lpthread -lm

# Times of the CUDA kernels, attention beside its twin without pages. Needs nvcc, make and a GPU, no more.
CUDA_BENCH_OBJECTS := $(patsubst %.cu,$O/%.o,$(sort $(wildcard bench/*.cu))) $(patsubst %.c,$O/%.o,$(sort $(wildcard bench/kernels_cuda*.c))) $O/src/measure/statistics.o
$O/tf-cuda-bench: $(CUDA_BENCH_OBJECTS) $(CHECK_ARCHIVES)
	$(if $(CUDA_SKIPPED),$(error tf-cuda-bench needs the CUDA code: $(CUDA_SKIPPED)))
	$(link) $(CUDA_BENCH_OBJECTS) -Wl,--start-group $(CHECK_ARCHIVES) -Wl,--end-group $(CUDA_LIBS) -lpthread -lm

# SHAPES: 0.8b, 2b, 27b; all when not given.
.PHONY: bench-kernels
bench-kernels: build/tf-cpu-bench
	@$O/tf-cpu-bench $(SHAPES)

# Writes $2 to file $1 when it differs from what is there, so that objects and archives follow a change of their flags
# or members.
remember = $(shell mkdir -p $(dir $1))$(file >$1.new,$2)$(shell cmp -s $1.new $1 && rm -f $1.new || mv $1.new $1)
$(call remember,$O/flags,$(CC) $(CFLAGS) | $(NVCC) $(NVCCFLAGS))

define layer_rules
$(call remember,$O/lib$1.members,$(call objects,$1))
$O/lib$1.a: $(filter-out $(MAIN_OBJECTS),$(call objects,$1)) $O/lib$1.members
	@rm -f $$@
	@$(AR) rcs $$@ $$(filter %.o,$$^)
endef
$(foreach l,$(LAYERS),$(if $(strip $(call objects,$l)),$(eval $(call layer_rules,$l))))

compile = @mkdir -p $(@D) && echo "  cc    $<" && $(CC) $(CFLAGS) $1 -MMD -MP -c -o $@ $<

# Kernels are loops that only pay unrolled. So it is under the thread sanitizer too: sums that stay in registers are
# not memory for it to watch. Under the others that would take minutes to compile; and there GCC keeps wide vectors in
# frames for use after return, which are aligned to less than what it stores them with.
KERNEL_FLAGS := $(if $(filter asan fuzz,$(VARIANT)),,-O3)
ifneq ($(filter asan,$(VARIANT)),)
KERNEL_FLAGS += $(if $(findstring clang,$(shell $(CC) --version)),,--param asan-use-after-return=0)
endif
$O/src/cpu/x86/%.o: src/cpu/x86/%.c $O/flags
	$(call compile,$(KERNEL_FLAGS) $(call isa,$<))

$O/bench/peak_%.o: bench/peak_%.c $O/flags
	$(call compile,$(ISA_$*))

$O/%.o: %.c $O/flags
	$(call compile)

# Its files are part of the program.
$O/src/server/page.o: $(wildcard src/server/page/*)

# Matrix instructions of warpgroups belong to one generation alone, which the letter says.
gpu = $1$(if $(filter 90,$1),a)
# Beside each object lies what the assembler says of its kernels' resources.
compile_cuda = @$(NVCC) $(NVCCFLAGS) -Xptxas -v -gencode arch=compute_$(call gpu,$1),code=sm_$(call gpu,$1) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< \
    2>$(@:.o=.res) || { cat $(@:.o=.res) >&2; exit 1; }

$O/src/cuda/%.o: src/cuda/%.cu $O/flags
	@mkdir -p $(@D) && echo "  nvcc  $<"
	$(call compile_cuda,90)
$O/bench/%.o: bench/%.cu $O/flags
	@mkdir -p $(@D) && echo "  nvcc  $<"
	$(call compile_cuda,90)

# Every architecture that the product names. Compiling is all that a machine without these cards can do.
.PHONY: cuda-all
cuda-all: $(if $(CUDA_SKIPPED),,$(foreach a,$(CUDA_ALL),$(patsubst src/cuda/%.cu,$O/sm_$a/%.o,$(CUDA_SOURCES))))
	@echo "  cuda  $(if $(CUDA_SKIPPED),skipped: $(CUDA_SKIPPED),compiled for sm_$(subst $() ,$() sm_,$(CUDA_ALL)))"

# Registers, spills and shared memory of every kernel against what is recorded; RECORD=1 writes the record.
.PHONY: cuda-resources
cuda-resources: $(if $(CUDA_SKIPPED),,$(CUDA_OBJECTS))
	@$(if $(CUDA_SKIPPED),echo "  cuda  skipped: $(CUDA_SKIPPED)",NVCC=$(NVCC) tools/cuda_resources.sh 90 $O/src/cuda $(RECORD))

define cuda_rules
$O/sm_$1/%.o: src/cuda/%.cu $O/flags
	@mkdir -p $$(@D) && echo "  nvcc  $$< (sm_$1)"
	$$(call compile_cuda,$1)
endef
$(foreach a,$(CUDA_ALL),$(eval $(call cuda_rules,$a)))

.DELETE_ON_ERROR:
.PRECIOUS: $O/%.o
-include $(shell find $O -name '*.d' 2>/dev/null)

include tests/tests.mk

# ---- installing: everything under $(DESTDIR)$(PREFIX); MODELS= leaves out the small models ----
PREFIX  ?= /usr/local
DESTDIR ?=
MODELS  ?= fold-s fold-moe fold-s-DFlash2
place    = $(DESTDIR)$(PREFIX)
# What is installed beside the models and the examples: file and place, with a colon between.
INSTALLED := man:share/man/man1/tokenfold.1 bash:share/bash-completion/completions/tokenfold \
             zsh:share/zsh/site-functions/_tokenfold fish:share/fish/vendor_completions.d/tokenfold.fish
.PHONY: install uninstall
install: $O/tokenfold
	@install -d $(place)/bin $(place)/lib/systemd/system $(place)/share/doc/tokenfold
	@install -m 755 $O/tokenfold $(place)/bin/tokenfold
	@set -e; for i in $(INSTALLED); do \
	    mkdir -p "$(place)/$$(dirname $${i#*:})"; \
	    tools/manual.sh $O/tokenfold $${i%%:*} >"$(place)/$${i#*:}"; chmod 644 "$(place)/$${i#*:}"; done
	@sed 's|@PREFIX@|$(PREFIX)|g' deploy/tokenfold.service >$(place)/lib/systemd/system/tokenfold.service
	@chmod 644 $(place)/lib/systemd/system/tokenfold.service
	@set -e; for m in $(MODELS); do \
	    install -d $(place)/share/tokenfold/models/$$m; \
	    install -m 644 models/$$m/*.* $(place)/share/tokenfold/models/$$m; done
	@install -m 644 README.md LICENSE CHANGELOG.md docs/*.md deploy/*.* $(place)/share/doc/tokenfold
	@echo "  installed under $(place)"

uninstall:
	@rm -f $(place)/bin/tokenfold $(place)/lib/systemd/system/tokenfold.service $(foreach i,$(INSTALLED),$(place)/$(lastword $(subst :, ,$i)))
	@rm -rf $(place)/share/doc/tokenfold $(place)/share/tokenfold

# ---- the commands of a person ----
PORT ?= 8080
.PHONY: serve format clean help
serve:
	@./setup.sh build
	+@$(MAKE) --no-print-directory $(JOBS) build/tokenfold
	@PORT="$(PORT)" MODEL="$(MODEL)" tools/serve.sh

format:
	@find src check bench tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

clean:
	rm -rf build

help:
	@sed -n '1,3s/^# //p' Makefile
	@echo
	@echo "make serve PORT=8080 MODEL=FOLDER   serve another port or checkpoint"
	@echo "make test-KIND                      one kind of test: $(TEST_KINDS)"
	@echo "make eval                           ask both shipped models hundreds of held-out questions; writes their eval.json"
	@echo "make abuse | soak                   the long tests: malformed input by the thousand; hours of load"
	@echo "make gates                          every cell of tokenfold gate on both shipped models"
	@echo "make test-structured                random schemas by the hundred from both shipped models, and their cost to other replies"
	@echo "make bench-kernels SHAPES=0.8b      times of the CPU's operations, and their share of what the machine can do"
	@echo "make build/tf-cuda-bench             the same of the CUDA kernels; run it where there is a GPU"
	@echo "make fuzz FUZZ=NAME FUZZ_SECONDS=60 search for new inputs with libFuzzer (all targets when FUZZ is not given)"
	@echo "make cuda-all                       compile the CUDA code for every architecture"
	@echo "make cuda-resources [RECORD=1]      registers, spills and shared memory of the kernels against the record"
	@echo "make install PREFIX=/usr/local      program, manual, completions, systemd unit, small models; and make uninstall"
	@echo "make format | clean                 clang-format every source; remove build/"
